"""What only waited for its turn is kept with the attempts that it had, and an envelope goes to its owner alone."""

from __future__ import annotations

from typing import Any

import pytest

from framework.errors import HandlerTimeout, PublishError, Retry
from framework.handler import make_spec
from framework.message import Batch, Message
from framework.middleware import compile_chain, later
from framework.middleware.later import Delays, LaterTopic, later_topic
from framework.middleware.outcome import DEAD, DEFERRED, Requeue
from tests.middleware.waiting import LONGEST, Waiting, noting, retry_in


def room_of(waiting: Waiting, **options: Any) -> LaterTopic:
    spec = make_spec(lambda message: None, "orders", "billing", options)
    return LaterTopic(spec, waiting.defer, lambda: Delays(waiting.longest, waiting.longest))


def test_what_has_used_up_its_deliveries_unstarted_is_kept_with_the_attempts_that_it_had(waiting: Waiting) -> None:
    room = room_of(waiting, max_attempts=3)
    message = waiting.original(b"body", attempts=3)
    assert [room.must_keep(message, deliveries) for deliveries in (2, 3, 4)] == [False, True, True]
    assert room.keep(message, 5.0)
    waiting.now += 5
    seen: list[int] = []
    assert waiting.chain(lambda message: seen.append(message.attempts), max_attempts=3)(waiting.envelope()) is None
    assert seen == [3]


def test_an_envelope_that_only_waited_is_kept_likewise_and_its_crashes_count(waiting: Waiting) -> None:
    room = room_of(waiting, max_attempts=4)
    room.keep(waiting.original(attempts=3), 0.0)
    waiting.now += 1
    for _ in range(20):
        envelope = waiting.envelope()
        assert not room.must_keep(envelope, 1)
        assert room.must_keep(envelope, 2)
        room.keep(envelope, 0.0)
    waiting.now += 1
    seen: list[int] = []
    chain = waiting.chain(lambda message: seen.append(message.attempts), max_attempts=4)
    assert chain(waiting.envelope(attempts=2)) is None
    assert chain(waiting.envelope(attempts=3)) == DEAD
    assert seen == [4]


def test_an_envelope_that_is_early_goes_on_waiting_until_it_is_due(waiting: Waiting) -> None:
    room = room_of(waiting, max_attempts=1)
    waiting.chain(retry_in(7300), max_attempts=5)(waiting.original())
    waiting.now += 3600
    room.keep(waiting.envelope(), 0.0)
    assert waiting.published[-1][2] == 3600.0
    waiting.now += 3600
    room.keep(waiting.envelope(), 0.0)
    assert waiting.published[-1][2] == pytest.approx(100.0)


def test_nobody_keeps_what_has_no_limit_what_is_anothers_or_where_nothing_waits(waiting: Waiting) -> None:
    envelope = strangers(waiting)
    theirs = LaterTopic(
        make_spec(lambda m: None, "orders", "eu.billing", {"max_attempts": 1}), waiting.defer, lambda: Delays(LONGEST, LONGEST)
    )
    assert not theirs.must_keep(envelope, 9)
    envelope.body = b"no envelope"
    assert not theirs.must_keep(envelope, 9)
    assert not room_of(waiting, max_attempts=0).must_keep(waiting.original(), 10**6)
    waiting.longest = 0.0
    assert not room_of(waiting, max_attempts=1).must_keep(waiting.original(), 9)


def test_what_cannot_be_stored_is_said_and_not_kept(waiting: Waiting, caplog: pytest.LogCaptureFixture) -> None:
    waiting.refuse = PublishError("no broker")
    assert not room_of(waiting, max_attempts=1).keep(waiting.original(), 0.0)
    assert "cannot wait in topic orders.billing.later (no broker), so that it waited counts as an attempt" in caplog.text


def test_what_is_settled_is_stored_nowhere_else(waiting: Waiting) -> None:
    message = waiting.original()
    message.connection.in_flight.clear()
    wanted = Requeue(2 * LONGEST)
    assert room_of(waiting).requeue(message, wanted) is wanted
    assert waiting.published == []


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), HandlerTimeout(1)])
def test_an_envelope_on_which_its_opening_fails_comes_again(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    chain = waiting.chain(retry_in(2 * LONGEST))
    chain(waiting.original())

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(LaterTopic, "returned", fails)
    assert chain(waiting.envelope()) == Requeue(later.AGAIN)


@pytest.mark.parametrize("batch", [0, 5])
def test_an_envelope_that_could_not_be_passed_on_in_time_comes_again_and_costs_its_message_nothing(
    waiting: Waiting, batch: int
) -> None:
    """The time limit ends the publish; the handler was not called, and it is no failure of its."""
    seen: list[object] = []
    waiting.chain(retry_in(7300))(waiting.original())
    waiting.refuse = HandlerTimeout("it has run longer than its timeout")  # type: ignore[assignment]
    envelope = waiting.envelope(attempts=5)
    chain = waiting.chain(noting(seen), max_attempts=1, **({"batch": batch} if batch else {}))
    assert (chain([envelope])[envelope] if batch else chain(envelope)) == Requeue(later.AGAIN)
    assert (seen, waiting.dead) == ([], [])


def strangers(waiting: Waiting) -> Message:
    """An envelope of orders.eu/billing, whose names make the topic of orders/eu.billing."""
    spec = make_spec(lambda message: None, "orders.eu", "billing")
    ours = make_spec(lambda message: None, "orders", "eu.billing")
    assert later_topic(spec) == later_topic(ours)
    message = waiting.original()
    message.connection.topic, message.connection.channel = "orders.eu", "billing"
    spec = make_spec(retry_in(7200), "orders.eu", "billing")
    room = LaterTopic(spec, waiting.defer, lambda: Delays(LONGEST, LONGEST))
    compile_chain(spec, publish=lambda topic, body: None, delay=float, later=room)(message)
    return waiting.envelope()


@pytest.mark.parametrize("passed", [0, 7200])
@pytest.mark.parametrize("batch", [0, 5])
def test_a_strangers_envelope_is_left_alone_where_each_channel_has_its_copy(waiting: Waiting, passed: float, batch: int) -> None:
    envelope = strangers(waiting)
    seen: list[object] = []
    waiting.now += passed
    options = {"batch": batch} if batch else {}
    chain = waiting.chain(noting(seen), names=("orders", "eu.billing"), **options)
    outcome = chain([envelope])[envelope] if batch else chain(envelope)
    assert outcome == Requeue(later.STRANGERS_WAIT)
    assert seen == []
    assert len(waiting.published) == 1
    assert waiting.dead == []


def test_a_strangers_envelope_is_passed_on_anew_where_there_is_one_queue(waiting: Waiting) -> None:
    """To give it back would use up an attempt of its owner's."""
    envelope = strangers(waiting)
    waiting.copies = False
    waiting.now += 7200
    assert waiting.chain(retry_in(1), names=("orders", "eu.billing"))(envelope) == DEFERRED
    assert waiting.published[-1][:2] == waiting.published[-2][:2]
    assert 1 <= waiting.published[-1][2] <= 10
    waiting.refuse = PublishError("no broker")
    assert 1 <= waiting.chain(retry_in(1), names=("orders", "eu.billing"))(envelope).delay <= 10


@pytest.mark.parametrize("carries", [True, False])
def test_a_strangers_envelope_is_passed_on_with_its_headers_where_the_broker_carries_any(waiting: Waiting, carries: bool) -> None:
    strangers(waiting)
    waiting.headers = {"trace": "1"}
    envelope = waiting.envelope()
    waiting.copies, waiting.carries, waiting.headers = False, carries, {}
    assert waiting.chain(retry_in(1), names=("orders", "eu.billing"))(envelope) == DEFERRED
    assert waiting.headers == ({"trace": "1"} if carries else {})


def test_the_owner_of_an_envelope_gets_it(waiting: Waiting) -> None:
    envelope = strangers(waiting)
    waiting.now += 7200
    seen: list[tuple[str, str, int]] = []
    chain = waiting.chain(lambda m: seen.append((m.topic, m.channel, m.attempts)), names=("orders.eu", "billing"))
    assert chain(envelope) is None
    assert seen == [("orders.eu", "billing", 2)]


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
