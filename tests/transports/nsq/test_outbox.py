"""What waits to be sent, by itself: its order, what a socket takes only a part of, and what is done in the hub's place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from framework.engine.ledger import Ledger
from framework.errors import BrokerError
from framework.message import Message
from framework.transports.contract import TOUCH_AT
from framework.transports.nsq import wire
from framework.transports.nsq.outbox import Outbox
from framework.transports.nsq.rescue import Rescue, taken


def ident(number: int) -> bytes:
    return b"%016d" % number


class Socket:
    """Takes ``room`` bytes, and then no more."""

    def __init__(self, room: int = 1 << 20) -> None:
        self.room = room
        self.got = b""

    def send(self, data: Any) -> int:
        if not self.room:
            raise BlockingIOError
        some = bytes(data)[: self.room]
        self.room -= len(some)
        self.got += some
        return len(some)


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


ALL = b"".join(
    [
        b"RDY 0\n", b"TOUCH %b\n" % ident(1), b"TOUCH %b\n" % ident(2),
        b"FIN %b\n" % ident(3), b"FIN %b\n" % ident(4), b"RDY 7\n",
        b"REQ %b 1500\n" % ident(5), b"REQ %b 0\n" % ident(6), b"NOP\n", b"CLS\n",
    ]
)  # fmt: skip


def fill(outbox: Outbox) -> None:
    outbox.first, outbox.rdy = wire.rdy(0), 7
    outbox.touches += [ident(1), ident(2)]
    outbox.fins += [ident(3), ident(4)]
    outbox.reqs += [wire.req(ident(5), 1.5), wire.req(ident(6), 0)]
    outbox.others += [wire.NOP, wire.CLS]


def test_all_of_it_leaves_in_one_send_in_its_order_and_once(outbox: Outbox) -> None:
    fill(outbox)
    socket, tally = Socket(), Ledger()
    waits = len(ALL) - len(b"RDY 0\n") - len(b"RDY 7\n")
    assert outbox.size() == waits
    for _ in range(2):
        assert outbox.send(socket, tally)  # type: ignore[arg-type]
        assert (socket.got, outbox.size(), tally.finished, tally.requeued) == (ALL, 0, 2, 2)


def test_nothing_to_say_is_nothing_said(outbox: Outbox) -> None:
    socket = Socket()
    assert outbox.send(socket, Ledger())  # type: ignore[arg-type]
    assert (socket.got, outbox.size()) == (b"", 0)


@pytest.mark.parametrize("room", [0, 1, 30, len(ALL) - 1])
def test_what_a_socket_takes_a_part_of_goes_on_from_there_and_nothing_gets_ahead_of_it(outbox: Outbox, room: int) -> None:
    fill(outbox)
    socket, tally = Socket(room), Ledger()
    assert not outbox.send(socket, tally)  # type: ignore[arg-type]
    assert outbox.size() == len(ALL) - room
    outbox.fins.append(ident(9))
    for _ in range(2):
        assert not outbox.send(socket, tally)  # type: ignore[arg-type]
    assert outbox.fins == [ident(9)], "it stays where it is, so that no copy grows"
    socket.room = 1 << 20
    assert outbox.send(socket, tally)  # type: ignore[arg-type]
    assert socket.got == ALL + b"FIN %b\n" % ident(9)
    assert (tally.finished, tally.requeued) == (3, 2)


@pytest.mark.parametrize(
    ("sent", "lost"),
    [
        (0, (2, 2)),
        (ALL.index(b"FIN") + 3, (2, 2)),
        (ALL.index(b"RDY 7") - 1, (1, 2)),
        (ALL.index(b"RDY 7"), (0, 2)),
        (ALL.index(b"REQ") + 30, (0, 1)),
        (len(ALL) - 1, (0, 0)),
    ],
)
def test_what_was_cut_off_counts_as_not_sent(outbox: Outbox, sent: int, lost: tuple[int, int]) -> None:
    fill(outbox)
    outbox.send(Socket(sent), Ledger())  # type: ignore[arg-type]
    assert outbox.cut_off() == lost
    fill(outbox)
    outbox.clear()
    assert (outbox.size(), outbox.cut_off(), outbox.rdy, outbox.first) == (0, (0, 0), None, b"")


def test_once_it_was_sent_nothing_is_cut_off(outbox: Outbox) -> None:
    fill(outbox)
    outbox.send(Socket(), Ledger())  # type: ignore[arg-type]
    assert outbox.cut_off() == (0, 0)


def test_in_the_hubs_place_the_same_is_said_with_touches_and_answers_and_counted_for_the_hub(outbox: Outbox) -> None:
    fill(outbox)
    rescue, socket = Rescue(), Socket(40)
    rescue.heartbeats = 2
    outbox.send_in_its_place(socket, rescue, [ident(8)], [b"CLS\n"])  # type: ignore[arg-type]
    assert (rescue.finished, rescue.requeued, rescue.heartbeats) == (2, 2, 0)
    assert (outbox.touches, outbox.fins, outbox.reqs, outbox.others, outbox.rdy) == ([], [], [], [], 7)
    socket.room = 1 << 20
    assert outbox.send_tail(socket)  # type: ignore[arg-type]
    touches = b"".join(b"TOUCH %b\n" % ident(number) for number in (1, 2, 8))
    assert (
        socket.got == touches + ALL[ALL.index(b"FIN") : ALL.index(b"RDY 7")] + ALL[ALL.index(b"REQ") :] + 2 * wire.NOP + b"CLS\n"
    )


def test_what_the_hub_adds_while_it_is_taken_stays() -> None:
    class Busy(list[bytes]):
        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            self.append(b"later")
            return found

    waiting = Busy([b"1", b"2"])
    assert taken(waiting) == [b"1", b"2"]
    assert list(waiting) == [b"later"]


# -- leases in the hub's place


def message(number: int) -> Message:
    return Message(ident(number), 0, 1, b"", SimpleNamespace())


def test_what_was_received_or_touched_a_third_of_a_lease_ago_is_touched_unless_it_may_not_be() -> None:
    old, new, over, came = map(message, range(4))
    third = 60 * TOUCH_AT
    in_flight = {old: 1000.0, new: 1000.0 + third / 2, over: 0.0}
    rescue = Rescue()
    rescue.heard([came], [wire.HEARTBEAT, b"OK", wire.HEARTBEAT, BrokerError("E_FIN_FAILED", "x")], 1001.0)
    assert (rescue.heartbeats, [str(frame) for frame in rescue.frames]) == (2, ["b'OK'", str(BrokerError("E_FIN_FAILED", "x"))])

    def touched(now: float) -> list[bytes]:
        return rescue.touch(in_flight, 60.0, now, {over})

    assert touched(1000.0 + third - 0.1) == []
    assert touched(1000.0 + third) == [old.id]
    assert touched(1001.0 + third) == [came.id]
    assert touched(1000.0 + third * 1.5) == [new.id]
    assert list(rescue.since) == [old, came, new]
    assert touched(1000.0 + third * 2) == [old.id], "a third of a lease after it was touched here"
    assert rescue.give_back(in_flight, {new}) == [wire.req(one.id, 0) for one in (old, over, came)]
    assert rescue.give_back(in_flight, {new}) == []
    assert touched(1e9) == [new.id], "what is given back is kept no longer"


def test_what_the_hub_changes_while_it_is_looked_at_is_looked_at_again() -> None:
    class Changing(dict[Message, float]):
        times = 0

        def items(self) -> Any:
            self.times += 1
            if self.times < 3:
                raise RuntimeError("dictionary changed size during iteration")
            return super().items()

    one = message(1)
    assert Rescue().touch(Changing({one: 0.0}), 60.0, 1000.0, ()) == [one.id]
