"""What goes wrong while letters are in hand: none is counted twice, none is left in flight, and the end takes seconds at most."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.deadletters import DeadTopic, Selection, Sweep, find
from framework.deadletters import sweep as sweeping
from framework.errors import AlreadySettled, BrokerUnreachable, SomeUnreachable
from framework.testing.proxy import Proxy
from framework.testing.servers import Server, own_nsqd, running
from framework.transports import open_transports
from framework.transports.contract import Limits, Transport
from framework.transports.memory import MemoryBroker, add, forget

TOPIC = "orders.billing.dead"
_numbers = itertools.count()
Make = Callable[..., bytes]


@pytest.fixture
def broker(letter: Make) -> Iterator[MemoryBroker]:
    """With the letters 0, 1 and 2."""
    made = MemoryBroker(f"sweep-faults-{next(_numbers)}")
    add(made)
    made.store(TOPIC, [letter(n) for n in range(3)], 0.0, None)
    yield made
    forget(made.name)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Server]:
    with running(own_nsqd(tmp_path)) as server:
        yield server


def over(*urls: str) -> Transport:
    [transport] = open_transports(urls)
    return transport


def sweep_of(transport: Transport) -> Sweep:
    [topic] = find([transport])
    return Sweep(topic)


def test_a_letter_that_comes_again_is_met_once(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease was lost while it was in hand: it must not take the place of one that was not looked at yet."""
    monkeypatch.setattr(sweeping, "WINDOW", 1)
    met = []
    with sweep_of(over(broker.url)) as sweep:
        for one in sweep.chosen(Selection()):
            met.append(one.body)
            if len(met) < 3:
                assert broker.expire(told=True) == len(met)
    assert (sorted(met), sweep.seen, sweep.cut_short) == ([b"body 0", b"body 1", b"body 2"], 3, "")
    assert len(broker.waiting(TOPIC)) == 3


@pytest.mark.parametrize("known", [False, True])
def test_a_letter_that_is_taken_without_its_lease_is_finished_when_it_comes_again(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Whether it is known here by then that the lease is lost, or not."""
    monkeypatch.setattr(sweeping, "WINDOW", 1)
    met = []
    with sweep_of(over(broker.url)) as sweep:
        for one in sweep.chosen(Selection()):
            met.append(one.body)
            if len(met) == 1:
                broker.expire(told=True)
                while known and not one.message.settled:
                    gevent.sleep(0.01)
                sweep.take(one)
    assert (sorted(met), sweep.seen, sweep.left_behind) == ([b"body 0", b"body 1", b"body 2"], 3, 0)
    assert len(broker.waiting(TOPIC)) == 2


def test_what_comes_again_is_held_without_its_body(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand may be in hand."""
    monkeypatch.setattr(sweeping, "WINDOW", 1)
    with sweep_of(over(broker.url)) as sweep:
        for _ in sweep.chosen(Selection()):
            if sweep.seen == 1:
                broker.expire(told=True)
        [session] = [session for node in broker.nodes.values() for session in node.sessions]
        assert [message.body for message in session.leases] == [b""] * 3


def test_what_cut_it_short_is_what_it_says_although_others_hold_letters(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "WINDOW", 1)
    monkeypatch.setattr(sweeping, "QUIET", 0.02)
    monkeypatch.setattr(sweeping, "PATIENCE", 0.2)
    transport = over(broker.url)
    with sweep_of(transport) as of_another:
        assert next(of_another.chosen(Selection())).body == b"body 0"
        with sweep_of(transport) as sweep:
            for _ in sweep.chosen(Selection()):
                sweep.cut_short = "no more can be held at once"
        assert (sweep.seen, sweep.cut_short) == (2, "no more can be held at once")


def test_letters_are_read_as_they_come(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "QUIET", 30.0)
    with sweep_of(over(broker.url)) as sweep, gevent.Timeout(10):
        assert len(list(sweep.chosen(Selection()))) == 3


def test_it_ends_as_soon_as_all_is_given_back(broker: MemoryBroker) -> None:
    with sweep_of(over(broker.url)) as sweep:
        assert len(list(sweep.chosen(Selection()))) == 3
        began = time.monotonic()
    assert time.monotonic() - began < sweeping.GOODBYE
    assert broker.in_flight(TOPIC) == 0


def test_a_node_that_hangs_does_not_keep_it_from_its_end(embedded: Server, letter: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "GOODBYE", 0.5)
    transport = over(f"nsq://{embedded.address}?http_port={embedded.http_port}")
    transport.producer().publish(TOPIC, [letter(1)])
    with sweep_of(transport) as sweep:
        assert len(list(sweep.chosen(Selection()))) == 1
        embedded.freeze()
        began = time.monotonic()
    took = time.monotonic() - began
    embedded.thaw()
    assert 0.5 <= took < 10


def test_letters_on_their_way_at_its_end_are_given_back_too(
    embedded: Server, letter: Make, start_proxy: Callable[[str], Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their connection is gone by then: nobody would have them until their leases are over."""
    monkeypatch.setattr(sweeping, "WINDOW", 2)
    http = f"http_port={embedded.http_port}"
    direct, proxy = over(f"nsq://{embedded.address}?{http}"), start_proxy(embedded.address)
    direct.producer().publish(TOPIC, [letter(n) for n in range(4)])

    def count(what: str) -> int:
        return int(embedded.channel_stats(TOPIC, "dead")[what])

    with gevent.Timeout(30), sweep_of(over(f"nsq://{proxy.address}?{http}")) as sweep:
        for _ in sweep.chosen(Selection(reason="odd", limit=2)):
            if sweep.seen == 2:
                proxy.to_client.hold()  # what was asked for behind the first has not left yet
                while count("in_flight_count") < 3:
                    gevent.sleep(0.01)
        gevent.spawn_later(0.3, proxy.restore)
    with gevent.Timeout(10):  # a lease is a minute
        while (count("depth"), count("in_flight_count")) != (4, 0):
            gevent.sleep(0.01)


class Line:
    """A connection whose end takes its time."""

    node, topic, limits = "a:1", TOPIC, Limits(60.0, 60.0, 1)

    def __init__(self, sweep: Sweep) -> None:
        self.in_flight: dict[Any, float] = {}
        self._sweep = sweep
        sweep._open.append(self)  # type: ignore[arg-type]

    def drain(self) -> None:
        gevent.spawn_later(0.02, self._sweep.drained, self)

    def close(self, error: Exception | None = None) -> None:
        gevent.spawn_later(0.02, self._sweep.closed, self, error)


def test_it_ends_as_soon_as_its_connections_have(broker: MemoryBroker) -> None:
    with sweep_of(over(broker.url)) as sweep:
        Line(sweep), Line(sweep)
        began = time.monotonic()
    assert time.monotonic() - began < sweeping.GOODBYE


def test_nothing_is_held_or_kept_behind_its_end(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given back is there for others at once."""
    given: list[tuple[Any, float]] = []
    monkeypatch.setattr(Line, "requeue", lambda _, *what: given.append(what), raising=False)
    with sweep_of(over(broker.url)) as sweep:
        Line(sweep).in_flight = {"a": 0.0, "b": 0.0}
        assert not sweep._toucher.dead
    assert given == [("a", 0.0), ("b", 0.0)]
    assert sweep._toucher.dead


@pytest.mark.parametrize("error", [None, BrokerUnreachable("it is gone")])
def test_a_connection_that_ends_while_letters_are_awaited_is_said_at_once(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    monkeypatch.setattr(sweeping, "QUIET", 30.0)
    monkeypatch.setattr(Sweep, "_connect", lambda self: Line(self).close(error))
    with gevent.Timeout(10), sweep_of(over(broker.url)) as sweep, pytest.raises(BrokerUnreachable, match=r"gone|closed the"):
        list(sweep.chosen(Selection()))


def test_a_letter_that_comes_while_it_is_asked_how_many_are_left_is_looked_at(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer counts it among those in hand, and it is: but nobody has seen it yet."""
    monkeypatch.setattr(sweeping, "QUIET", 0.05)
    transport = over(broker.url)
    backlog, deliver = transport.backlog, Sweep.deliver
    held: list[tuple[Any, Any]] = []

    def late(self: Sweep, connection: Any, batch: Any) -> None:
        held.append((connection, batch))

    def asked(*of: Any) -> Any:
        for connection, batch in held:
            deliver(sweep, connection, batch)
        held.clear()
        return backlog(*of)

    with sweep_of(transport) as sweep:
        monkeypatch.setattr(Sweep, "deliver", late)
        monkeypatch.setattr(transport, "backlog", asked)
        assert len(list(sweep.chosen(Selection()))) == 3
        assert sweep.cut_short == ""


def test_nodes_that_were_down_when_it_began_do_not_end_it_and_those_that_have_letters_do() -> None:
    def backlog(*_: str) -> dict[str, int]:
        raise SomeUnreachable("b is down", ["b"], {"a": 0})

    transport: Any = SimpleNamespace(backlog=backlog)
    assert Sweep(DeadTopic("orders.billing.dead", transport, "dead", {"a": 1}))._all_in_hand()
    with pytest.raises(SomeUnreachable):
        Sweep(DeadTopic("orders.billing.dead", transport, "dead", {"a": 1, "b": 1}))._all_in_hand()


def test_one_letter_whose_lease_is_over_keeps_no_other_from_being_kept(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A touch may be when its connection finds out that it has lost another."""
    tried = []
    with sweep_of(over(broker.url)) as sweep:
        line = Line(sweep)
        line.in_flight = dict.fromkeys("abc", 0.0) | {"fresh": time.monotonic()}
        monkeypatch.setattr(Line, "limits", Limits(60.0, 900.0, 1))

        def touch(message: Any) -> None:
            tried.append(message)
            raise AlreadySettled.of(b"1")

        monkeypatch.setattr(Line, "touch", staticmethod(touch), raising=False)
        sweep._touch(line)  # type: ignore[arg-type]
        line.in_flight.clear()
    assert tried == ["a", "b", "c"]


@pytest.mark.parametrize("slow", ["drain", "close"])
def test_a_broker_that_takes_long_to_say_goodbye_is_waited_for(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """What it has not given back by then would wait until its lease is over."""
    monkeypatch.setattr(sweeping, "CLOSING", 0.0)
    monkeypatch.setattr(sweeping, "GOODBYE", 0.0)
    monkeypatch.setattr(Line, "limits", Limits(60.0, 60.0, 1, goodbye=30.0))
    heard = {"drain": Sweep.drained, "close": Sweep.closed}[slow]
    monkeypatch.setattr(
        Line, slow, lambda self, error=None: gevent.spawn_later(0.1, heard, self._sweep, self, *[error] * (slow == "close"))
    )
    with sweep_of(over(broker.url)) as sweep:
        line = Line(sweep)
    assert (line in sweep._drained, sweep._open) == (True, [])
