"""Delays that are longer than the broker takes: kept in hops, before the function runs, and paid with no attempt."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import Backoff, BadMessage, PublishError, Reject, Retry
from framework.handler import HandlerSpec, make_spec
from framework.message import Batch, Message
from framework.middleware import compile_chain, later
from framework.middleware.later import MARK, later_topic
from framework.middleware.outcome import DEAD, DEFERRED, Fault, Requeue

LONGEST = 3600.0


class Origin(SimpleNamespace):
    """A connection, as far as a message needs one."""

    def __hash__(self) -> int:
        return id(self)


class Waiting:
    """What was published to the ``.later`` topic, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_700_000_000.0
        self.published: list[tuple[str, bytes, float]] = []
        self.dead: list[bytes] = []
        self.refuse: Exception | None = None
        monkeypatch.setattr(later, "time", lambda: self.now)

    def defer(self, topic: str, body: bytes, delay: float) -> None:
        if self.refuse:
            raise self.refuse
        assert 0 <= delay <= LONGEST
        self.published.append((topic, body, delay))

    def chain(self, function: Callable[..., Any], **options: Any) -> Any:
        self.spec: HandlerSpec = make_spec(function, "orders", "billing", options)
        return compile_chain(
            self.spec,
            publish=lambda topic, body: self.dead.append(body),
            delay=lambda attempts: 10.0 * attempts,
            defer=self.defer,
            longest=LONGEST,
        )

    def original(self, body: bytes = b"body", attempts: int = 1) -> Message:
        origin = Origin(topic="orders", channel="billing", node="a:4150", in_flight={})
        made = Message(b"0123456789abcdef", 1_600_000_000_000_000_000, attempts, body, origin)
        origin.in_flight[made] = 0.0
        return made

    def envelope(self, attempts: int = 1) -> Message:
        """The last that was published, as it is delivered."""
        topic, body, _ = self.published[-1]
        origin = Origin(topic=topic, channel="billing", node="b:4150", in_flight={}, touched=0)
        made = Message(b"fedcba9876543210", 1_700_000_000_000_000_000, MARK + attempts, body, origin)
        origin.in_flight[made] = 0.0
        origin.touch = lambda message: setattr(origin, "touched", origin.touched + (message is made))
        return made


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(monkeypatch)


def retry_in(seconds: float) -> Callable[[Message], None]:
    def function(_: Message) -> None:
        raise Retry("later", delay=seconds)

    return function


def test_a_delay_that_the_broker_takes_is_the_brokers(waiting: Waiting) -> None:
    assert waiting.chain(retry_in(LONGEST))(waiting.original()) == Requeue(LONGEST)
    assert waiting.published == []


def test_a_longer_one_is_kept_in_hops_before_the_function_runs(waiting: Waiting) -> None:
    calls: list[Message] = []

    def function(message: Message) -> None:
        calls.append(message)
        if len(calls) == 1:
            raise Retry("later", delay=7300)

    chain = waiting.chain(function)
    assert chain(waiting.original(b"one\ntwo\x00", attempts=4)) == DEFERRED
    hops = [waiting.published[-1][2]]
    while len(waiting.published) < 10:
        waiting.now += waiting.published[-1][2]
        if chain(waiting.envelope()) is None:
            break
        hops.append(waiting.published[-1][2])
    assert hops == [3600, 3600, 100]
    assert waiting.now == 1_700_000_000.0 + 7300
    original, returned = calls
    for name in ("id", "timestamp", "body", "topic", "channel", "node"):
        assert getattr(returned, name) == getattr(original, name)
    assert (original.attempts, returned.attempts) == (4, 5)


def test_a_broker_that_forgets_its_delays_changes_nothing(waiting: Waiting) -> None:
    chain = waiting.chain(retry_in(7200))
    chain(waiting.original())
    waiting.now += 10  # it was restarted, and delivers at once what it had deferred
    assert chain(waiting.envelope()) == DEFERRED
    assert waiting.published[-1][2] == 3600
    waiting.now += 7180
    assert chain(waiting.envelope()) == DEFERRED
    assert waiting.published[-1][2] == 10


def test_hops_cost_no_attempts_and_crashes_do(waiting: Waiting) -> None:
    seen: list[int] = []

    def function(message: Message) -> None:
        seen.append(message.attempts)
        raise Retry("later", delay=36_000)

    chain = waiting.chain(function, max_attempts=3)
    chain(waiting.original())
    for _ in range(2):
        for _ in range(10):
            waiting.now += 3600
            chain(waiting.envelope())
    assert seen == [1, 2, 3]
    waiting.now += 36_000
    assert chain(waiting.envelope(attempts=1)) is DEAD
    [letter] = waiting.dead
    assert b'"id":"0123456789abcdef"' in letter
    assert b'"attempts":4' in letter
    assert letter.endswith(b"\nbody")


def test_a_process_that_dies_of_it_uses_up_its_attempts(waiting: Waiting) -> None:
    chain = waiting.chain(retry_in(7200), max_attempts=3)
    chain(waiting.original())
    waiting.now += 7200
    assert chain(waiting.envelope(attempts=3)) is DEAD  # delivered twice to workers that did not live to answer


def test_one_that_came_back_fails_like_any_other(waiting: Waiting) -> None:
    answers: list[Exception] = [Retry(delay=7200), ValueError("odd"), Reject("enough")]

    def function(_: Message) -> None:
        raise answers.pop(0)

    chain = waiting.chain(function)
    chain(waiting.original())
    waiting.now += 7200
    assert chain(waiting.envelope()) == Requeue(20.0)
    assert chain(waiting.envelope(attempts=2)) is DEAD
    assert b"Reject: enough" in waiting.dead[0]


def test_its_lease_is_the_envelopes(waiting: Waiting) -> None:
    touched: list[tuple[bool, bool]] = []
    chain = waiting.chain(retry_in(7200))
    chain(waiting.original())
    waiting.now += 7200
    envelope = waiting.envelope()

    def function(message: Message) -> None:
        message.touch()
        before = message.settled
        envelope.connection.in_flight.clear()
        touched.append((before, message.settled))

    waiting.chain(function)(envelope)
    assert envelope.connection.touched == 1
    assert touched == [(False, True)]


def test_a_pause_that_is_asked_for_with_a_long_delay_is_still_a_pause(waiting: Waiting) -> None:
    def function(_: Message) -> None:
        raise Backoff("down for the night", delay=8 * 3600)

    outcome = waiting.chain(function)(waiting.original())
    assert outcome == DEFERRED
    assert (outcome.fault, outcome.pause) == (Fault.DEPENDENCY, 8 * 3600)


@pytest.mark.parametrize("error", [PublishError("no broker"), BadMessage("too large with its envelope")])
def test_what_cannot_be_stored_stays_with_the_broker_for_as_long_as_that_takes_it(waiting: Waiting, error: Exception) -> None:
    waiting.refuse = error
    assert waiting.chain(retry_in(7200))(waiting.original()) == Requeue(LONGEST)


def test_an_envelope_that_cannot_be_stored_again_is_kept(waiting: Waiting) -> None:
    chain = waiting.chain(retry_in(7200))
    chain(waiting.original())
    waiting.refuse = PublishError("no broker")
    assert chain(waiting.envelope()) == Requeue(60.0)


def test_what_strangers_published_there_is_a_message_like_any_other(waiting: Waiting) -> None:
    seen: list[bytes] = []
    chain = waiting.chain(lambda message: seen.append(message.body))
    waiting.published.append((later_topic(waiting.spec), b"no envelope", 0.0))
    assert chain(waiting.envelope()) is None
    assert seen == [b"no envelope"]


def test_in_a_batch_each_is_what_it_came_as(waiting: Waiting) -> None:
    waiting.chain(retry_in(7200))(waiting.original(b"waited"))
    due = waiting.envelope()
    waiting.now += 7200
    waiting.chain(retry_in(7200))(waiting.original(b"waits"))
    early, plain, spent = waiting.envelope(), waiting.original(b"plain"), waiting.original(b"spent", attempts=9)
    bodies: list[bytes] = []

    def function(batch: Batch) -> None:
        bodies.extend(message.body for message in batch)
        batch.fail(next(message for message in batch if message.body == b"waited"), Retry("again", delay=5))

    outcomes = waiting.chain(function, batch=10, max_attempts=5)([due, early, plain, spent])
    assert sorted(bodies) == [b"plain", b"waited"]
    assert outcomes == {due: Requeue(5), early: DEFERRED, plain: None, spent: DEAD}


@given(st.binary(), st.binary(min_size=1, max_size=20), st.integers(1, 65535), st.floats(LONGEST + 1, 1e9))
def test_whatever_is_in_it_comes_out_as_it_went_in(body: bytes, id_: bytes, attempts: int, delay: float) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        waiting = Waiting(monkeypatch)
        original = waiting.original(body, attempts)
        original.id = id_
        assert waiting.chain(retry_in(delay), max_attempts=0)(original) == DEFERRED
        envelope = waiting.envelope()
        waiting.now += delay + 1
        seen: list[Message] = []
        waiting.chain(lambda message: seen.append(message), max_attempts=0)(envelope)  # noqa: PLW0108 - it must be a function
        assert (seen[0].id, seen[0].body, seen[0].attempts) == (id_, body, attempts + 1)
