"""What follows is asked for before what came is opened, so that a broker has work meanwhile; and nothing is left out."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from framework.message import Message
from framework.testing.conformance.receiver import Held
from framework.transports import open_transports
from framework.transports.rocketmq.opening import Opener
from framework.transports.rocketmq.pops import AT_ONCE
from framework.transports.rocketmq.queues import SPAN
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.rocketmq.wire.handles import bitset
from tests.transports.rocketmq.canned import NAME, QUEUES, Canned
from tests.transports.rocketmq.kit import until

Hold = Callable[[Canned, str], Held]


@pytest.fixture
def hold() -> Iterator[Hold]:
    closing: list[Any] = []

    def held(server: Canned, mode: str) -> Held:
        (transport,) = open_transports([f"rocketmq://{server.address}?mode={mode}&poll=200ms"])
        closing.extend([server, transport])
        one = Held(lambda receiver: transport.connect(NAME, server.topic, "billing", receiver))
        closing.append(one.connection)
        return one

    yield held
    for one in reversed(closing):
        one.close()


def settle_at_once(held: Held) -> None:
    take = held.receiver.deliver

    def deliver(by: Any, batch: list[Message]) -> None:
        take(by, batch)
        for message in batch:
            by.finish(message)

    held.receiver.deliver = deliver  # type: ignore[method-assign]


class Spoken:
    """What a session does, in turn: of each request its code, ``READ`` for each read, ``OPENED`` for each answer opened."""

    READ, OPENED = -1, 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[int] = []
        self.work: list[int] = []
        """Of each answer that is opened: how many POPs the broker has to answer by then."""
        self._under_way = 0
        encoded, opened, taken = Session._encoded, Opener.opened, Session._take

        def encode(session: Session, code: int, *more: Any) -> bytes:
            self.said.append(code)
            self._under_way += code == Request.POP_MESSAGE
            return encoded(session, code, *more)

        def open_(opener: Opener, data: bytes) -> Any:
            self.said.append(self.OPENED)
            self.work.append(self._under_way)
            return opened(opener, data)

        def take(session: Session, events: list[Frame], at: float) -> None:
            self.said.append(self.READ)
            self._under_way -= sum("restNum" in frame.fields for frame in events)
            taken(session, events, at)

        monkeypatch.setattr(Session, "_take", take)
        monkeypatch.setattr(Session, "_encoded", encode)
        monkeypatch.setattr(Opener, "opened", open_)

    def before_opened(self) -> list[int]:
        return [self.said[at - 1] for at, code in enumerate(self.said) if code == self.OPENED != self.said[at - 1]]


def test_what_follows_in_a_queue_is_pulled_before_what_came_is_opened(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = Spoken(monkeypatch)
    held = hold(Canned(4000 // QUEUES), "pull")
    settle_at_once(held)
    held.grant(1000)
    until(lambda: len(held.taken) == 4000)
    before = spoken.before_opened()
    assert before.count(Request.PULL_MESSAGE) >= 5
    assert before.count(spoken.READ) <= 2 * QUEUES  # nothing follows the last of a queue


def test_what_follows_is_popped_before_what_came_is_opened_where_no_pop_is_under_way(
    hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = Spoken(monkeypatch)
    held = hold(Canned(4000), "pop")
    settle_at_once(held)
    held.grant(40)  # one POP at a time, of 32
    until(lambda: len(held.taken) == 4000)
    assert spoken.before_opened().count(Request.POP_MESSAGE) >= 5


def test_while_a_pop_is_under_way_the_next_goes_with_what_is_settled(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a packet of its own, a tenth of what a message costs."""
    spoken = Spoken(monkeypatch)
    held = hold(Canned(8000), "pop")
    settle_at_once(held)
    held.grant(1000)
    until(lambda: len(held.taken) == 8000)
    begun = spoken.work[5:-AT_ONCE]
    assert min(begun) >= 1, "the broker had nothing to do"
    assert spoken.before_opened().count(spoken.READ) > len(begun) // AT_ONCE // 2, "nothing was sent apart"


class Mixed(Canned):
    """Its one answer to a POP has messages of the topic and of a retry topic, all of queue 0, alike but for their ids."""

    def __init__(self) -> None:
        super().__init__(1)
        self.acks: list[Any] = []

    def _said(self, asked: Frame) -> Any:
        if asked.code == Request.BATCH_ACK_MESSAGE:
            self.acks += json.loads(asked.body)["acks"]
        return super()._said(asked)

    def _popped(self, asked: Any) -> Any:
        if self._given:
            return None
        self._given, again, fields = 1, f"%RETRY%{asked['consumerGroup']}_{self.topic}", {"startOffsetInfo": "0 0 5;1 0 9"}
        fields |= {"popTime": "1700000000000", "invisibleTime": asked["invisibleTime"], "reviveQid": "0", "restNum": "0"}
        parts = (self.topic, 5, 2), (again, 9, 2), (self.topic, 7, 1), (again, 11, 1)
        return Answer.SUCCESS, fields, b"".join(self._stored(topic, 0, first, count) for topic, first, count in parts)


def test_what_comes_again_among_what_is_new_is_acknowledged_where_it_lies(hold: Hold) -> None:
    server = Mixed()
    held = hold(server, "pop")
    settle_at_once(held)
    held.grant(10)
    until(lambda: len(server.acks) == 2)
    assert [(one["r"], one["so"], one["b"]) for one in server.acks] == [("0", 5, bitset([0, 1, 2])), ("1", 9, bitset([0, 1, 2]))]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_granted_and_settled_each_message_comes_once_and_none_is_committed_before_it_is_settled(
    seed: int, hold: Hold
) -> None:
    """By PULL, where what comes too late for the grant is passed over and pulled again."""
    dice, each = random.Random(seed), 600
    server = Canned(each)
    finished: set[int] = set()
    too_far: list[tuple[int, int]] = []
    commit = server._commit

    def committed(asked: Any) -> None:
        queue, offset = int(asked["queueId"]), int(asked["commitOffset"])
        if not {number * QUEUES + queue for number in range(offset)} <= finished:
            too_far.append((queue, offset))
        commit(asked)

    server._commit = committed  # type: ignore[method-assign]
    held = hold(server, "pull")
    connection: Any = held.connection
    most = dice.choice([5, 40, 150, 700])

    def number(message: Message) -> int:
        return int(message.id, 16)

    def step() -> bool:
        held.grant(dice.randint(1, most))
        waiting = list(connection.in_flight)
        for message in dice.sample(waiting, dice.randint(0, len(waiting))):
            finished.add(number(message))
            connection.finish(message)
        gevent.sleep(0.0)
        return len(finished) == QUEUES * each

    until(step, 60.0)
    assert sorted(map(number, held.taken)) == list(range(QUEUES * each))
    until(lambda: server.committed == dict.fromkeys(range(QUEUES), each))
    assert too_far == []


def test_what_an_answer_leaves_out_is_pulled_again_although_what_follows_was_asked_for_already(hold: Hold) -> None:
    server, dice = Canned(300), random.Random(1)
    answer = server._pulled

    def says_too_much(asked: Any) -> Any:
        said = answer(asked)
        if said is None:
            return None
        code, fields, body = said
        following = int(fields["nextBeginOffset"]) + dice.choice([0, 0, 7])
        return code, {**fields, "nextBeginOffset": str(min(following, server.messages))}, body

    server._pulled = says_too_much  # type: ignore[method-assign]
    held = hold(server, "pull")
    settle_at_once(held)
    held.grant(1000)
    until(lambda: len(held.taken) >= QUEUES * 300)
    assert sorted(int(message.id, 16) for message in held.taken) == list(range(QUEUES * 300))
    until(lambda: server.committed == dict.fromkeys(range(QUEUES), 300))


@pytest.mark.parametrize("mode", ["pop", "pull"])
def test_the_books_add_up_where_one_of_several_answers_cannot_be_opened(mode: str, hold: Hold) -> None:
    """They come in one read, and the first of them is in flight when the session ends."""
    server, dice = Canned(4000), random.Random(3)
    stored = server._stored

    def cut(*what: Any) -> bytes:
        body = stored(*what)
        return body if dice.randrange(30) else body[: len(body) // 2 - 5]

    server._stored = cut  # type: ignore[method-assign]
    for _ in range(5):
        held = hold(server, mode)
        settle_at_once(held)
        held.grant(1000)
        until(lambda held=held: held.receiver.closings)  # type: ignore[misc]
        assert held.tally.balance(0) == 0, held.tally


def test_no_more_is_pulled_ahead_of_what_is_not_settled_than_may_come_again(hold: Hold) -> None:
    held = hold(Canned(2 * SPAN), "pull")
    connection: Any = held.connection
    held.grant(5000)
    until(lambda: len(held.taken) > 4 * (SPAN - 100) or len(held.taken) >= 5000)
    gevent.sleep(0.1)
    assert all(reading.next - reading.mark <= SPAN for reading in connection.readings.values())
