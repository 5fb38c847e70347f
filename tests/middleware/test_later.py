"""Delays that are longer than the broker takes: kept in hops, before the function runs, and paid with no attempt."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import Backoff, BadMessage, PublishError, Reject, Retry
from framework.message import Message
from framework.middleware import later
from framework.middleware.later import LaterTopic, later_topic
from framework.middleware.outcome import DEAD, DEFERRED, Fault, Requeue
from tests.middleware.waiting import LIMITS, LONGEST, Waiting, retry_in


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
    [letter] = waiting.dead
    assert b'"id":"0123456789abcdef"' in letter
    assert b'"attempts":3' in letter
    assert b'"reason":"Retry: later"' in letter
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


@pytest.mark.parametrize(("passed", "longest", "delay"), [(0, LONGEST, 60.0), (7170, LONGEST, 30.0), (0, 5.0, 5.0)])
def test_an_envelope_that_cannot_be_stored_again_is_kept_no_longer_than_it_is_due_or_the_broker_takes(
    waiting: Waiting, passed: float, longest: float, delay: float
) -> None:
    chain = waiting.chain(retry_in(7200))
    chain(waiting.original())
    waiting.refuse = PublishError("no broker")
    waiting.now += passed
    waiting.longest = longest
    assert chain(waiting.envelope()) == Requeue(delay)


def test_what_was_given_back_meanwhile_is_not_stored_as_well(waiting: Waiting) -> None:
    message = waiting.original()
    message.connection.in_flight.clear()
    assert waiting.chain(retry_in(7200))(message) == Requeue(7200)
    assert waiting.published == []


def test_the_limit_of_a_requeue_is_that_of_its_node(waiting: Waiting) -> None:
    chain = waiting.chain(retry_in(80))
    message = waiting.original()
    message.connection.limits = replace(LIMITS, max_requeue=4.0)
    assert chain(message) == DEFERRED
    assert waiting.published[-1][2] == 80
    waiting.refuse = PublishError("no broker")
    message = waiting.original()
    message.connection.limits = replace(LIMITS, max_requeue=4.0)
    assert chain(message) == Requeue(4.0)


def test_a_broker_that_delays_no_requeue_has_every_delay_wait_in_an_envelope(waiting: Waiting) -> None:
    waiting.requeue = 0.0
    assert waiting.chain(retry_in(5))(waiting.original()) == DEFERRED
    assert [delay for _, _, delay in waiting.published] == [5]
    assert waiting.chain(retry_in(0))(waiting.original()) == Requeue(0)


def test_a_broker_that_delays_no_publish_is_asked_for_as_much_of_the_delay_as_a_requeue_keeps(waiting: Waiting) -> None:
    waiting.longest, waiting.requeue = 0.0, 100.0
    assert waiting.chain(retry_in(80))(waiting.original()) == Requeue(80)
    assert waiting.chain(retry_in(7200))(waiting.original()) == Requeue(100.0)
    assert waiting.published == []


def test_on_a_broker_with_levels_each_hop_is_a_level_and_none_but_the_last_passes_the_time(waiting: Waiting) -> None:
    calls: list[Message] = []

    def function(message: Message) -> None:
        calls.append(message)
        if len(calls) == 1:
            raise Retry("later", delay=4303)

    waiting.levels, waiting.longest, waiting.requeue = (1.0, 5.0, 60.0, 600.0, 3600.0), 3600.0, 3600.0
    chain = waiting.chain(function)
    outcome = chain(waiting.original())
    while outcome is not None and len(waiting.published) < 20:
        waiting.now += waiting.published[-1][2]
        outcome = chain(waiting.envelope())
    assert [delay for _, _, delay in waiting.published] == [3600, 600, 60, 5, 5, 5, 5, 5, 5, 5, 5, 1, 1, 1]
    assert waiting.now == 1_700_000_000.0 + 4303


def test_what_is_shorter_than_the_least_level_waits_for_that(waiting: Waiting) -> None:
    waiting.levels, waiting.longest, waiting.requeue = (1.0, 5.0, 60.0), 60.0, 0.2
    waiting.chain(retry_in(0.7))(waiting.original())
    assert [delay for _, _, delay in waiting.published] == [1.0]


def test_a_limit_that_is_learned_from_the_brokers_refusal_is_kept_to(waiting: Waiting) -> None:
    def defer(topic: str, body: bytes, delay: float, headers: object) -> None:
        if delay > 4:
            waiting.longest = 4.0
            raise PublishError("nsqd takes a delay of 0 to 4 seconds")
        waiting.published.append((topic, body, delay))

    waiting.defer = defer  # type: ignore[method-assign]
    assert waiting.chain(retry_in(7200))(waiting.original()) == DEFERRED
    assert [delay for _, _, delay in waiting.published] == [4.0]


# -- no hop without a delay


def test_where_the_broker_keeps_no_delay_nothing_is_published_and_the_log_says_when_it_comes(
    waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    waiting.longest = 0.0
    assert waiting.chain(retry_in(80))(waiting.original()) == Requeue(0.0)
    assert waiting.published == []
    assert "failed at attempt 1: Retry: later; delivered again in 0.0 s" in caplog.text


def test_an_envelope_comes_early_where_the_broker_keeps_no_delay_any_more(waiting: Waiting) -> None:
    seen: list[int] = []
    waiting.chain(retry_in(7200))(waiting.original())
    waiting.longest = 0.0
    assert waiting.chain(lambda message: seen.append(message.attempts))(waiting.envelope()) is None
    assert seen == [2]
    assert len(waiting.published) == 1


def test_a_broker_that_says_it_keeps_delays_and_does_not_is_found_out(waiting: Waiting) -> None:
    calls: list[Message] = []

    def function(message: Message) -> None:
        calls.append(message)
        if len(calls) == 1:
            raise Retry(delay=7200)

    chain = waiting.chain(function)
    outcome = chain(waiting.original())
    while outcome is not None and len(waiting.published) < 1000:
        waiting.now += 0.001
        outcome = chain(waiting.envelope())
    assert len(calls) == 2
    assert len(waiting.published) == 1 + later.TOO_EARLY


@pytest.mark.parametrize("ahead", [3600.0, 90.0, -3600.0])
def test_a_broker_whose_clock_is_wrong_keeps_delays_all_the_same(ahead: float, waiting: Waiting) -> None:
    calls: list[Message] = []

    def function(message: Message) -> None:
        calls.append(message)
        if message.attempts == 1:
            raise Retry(delay=30_000)

    waiting.longest, waiting.broker_ahead = 60.0, ahead
    handle = waiting.chain(function)
    assert handle(waiting.original()) == DEFERRED
    due = waiting.now + 30_000
    while waiting.now + 60 < due:
        waiting.now += 60
        assert handle(waiting.envelope()) == DEFERRED
    waiting.now = due
    assert handle(waiting.envelope()) is None
    assert [message.attempts for message in calls] == [1, 2]


@pytest.mark.parametrize("delay", [0.5, 7300.0])
@pytest.mark.parametrize("back", [3600.0, 300 * 86400.0])
def test_a_clock_that_is_set_back_makes_nothing_wait_longer_than_its_delay_once_more(
    delay: float, back: float, waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    """Or the worker that stored it had a clock that was ahead."""
    calls: list[Message] = []

    def function(message: Message) -> None:
        calls.append(message)
        if len(calls) == 1:
            raise Retry(delay=delay, count=False)

    chain = waiting.chain(function)
    assert chain(waiting.original()) == DEFERRED
    waiting.now -= back
    began = waiting.now
    while len(calls) < 2:
        waiting.now += waiting.published[-1][2]
        assert waiting.now - began <= 2 * delay + 1
        chain(waiting.envelope())
    assert "early" not in caplog.text


def test_an_envelope_that_is_kept_after_the_clock_was_set_back_is_due_by_the_new_one(waiting: Waiting) -> None:
    waiting.chain(retry_in(7300.0))(waiting.original())
    waiting.now -= 300 * 86400
    room = LaterTopic(waiting.spec, waiting.defer, waiting.delays, copies=True)
    assert room.keep(waiting.envelope(), 1.0)
    due = json.loads(waiting.published[-1][1].partition(b"\n")[0])["due"]
    assert due - waiting.now == pytest.approx(7300)


@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize(
    "header",
    [
        rb'{"topic":"orders","channel":"billing","id":"\u20ac","node":"n","timestamp":1,"attempts":0,"due":0}',
        b'{"topic":"orders","channel":"billing","id":"x","node":"n","timestamp":10000000000000000000000,"attempts":0,"due":0}',
        b'{"topic":"orders","channel":"billing","id":"x","node":"n","timestamp":1,"attempts":-5,"due":0}',
        b'{"topic":"orders","channel":"billing","id":"x","node":"n","timestamp":1,"attempts":0,"due":0,"put_off":9,"since":1e300}',
        b'{"a":' + b"[" * 100_000,
    ],
    ids=["id", "timestamp", "attempts", "since", "depth"],
)
def test_what_only_looks_like_an_envelope_is_a_message_and_can_be_put_off_and_dead_lettered(
    header: bytes, batch: int, waiting: Waiting
) -> None:
    words: list[Exception] = [Retry(delay=1, count=False), Retry(delay=LONGEST + 1), Reject("odd")]

    def function(job):
        for message in job if batch else [job]:
            assert message.published
        raise words.pop(0)

    handle = waiting.chain(function, **({"batch": batch} if batch else {}))

    def outcome(of: Message) -> Any:
        return handle([of])[of] if batch else handle(of)

    waiting.published.append((later_topic(waiting.spec), header + b"\nbody", 0.0))
    assert outcome(waiting.envelope()) == DEFERRED
    waiting.now += 2
    assert outcome(waiting.envelope()) == DEFERRED
    waiting.now += LONGEST + 2
    assert outcome(waiting.envelope()) == DEAD
    [letter] = waiting.dead
    assert letter.endswith(header + b"\nbody")


def test_the_rest_of_a_delay_is_never_rounded_to_none(waiting: Waiting) -> None:
    chain = waiting.chain(retry_in(7200))
    chain(waiting.original())
    waiting.now += 7200 - 1e-5
    assert chain(waiting.envelope()) == DEFERRED
    assert waiting.published[-1][2] >= 0.001


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
