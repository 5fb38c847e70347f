"""A Retry that does not count waits without using up an attempt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from framework.errors import Backoff, BadMessage, FrameworkError, HandlerTimeout, MessageRefused, PublishError, Retry
from framework.message import Batch, Message
from framework.middleware.later import PASSING, LaterTopic
from framework.middleware.outcome import DEAD, DEFERRED, Fault, Requeue
from tests.middleware.waiting import LONGEST, Waiting


def put_off(seconds: float | None = None) -> Callable[[Message], None]:
    def function(_: Message) -> None:
        raise Retry("one at a time", delay=seconds, count=False)

    return function


def test_a_retry_that_does_not_count_is_raised_as_often_as_one_likes(waiting: Waiting, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def function(message: Message) -> None:
        seen.append(message.attempts)
        put_off(5)(message)

    chain = waiting.chain(function, max_attempts=3)
    assert chain(waiting.original(attempts=2)) == DEFERRED
    for _ in range(110):
        assert waiting.published[-1][2] == 5
        waiting.now += 5
        assert chain(waiting.envelope()) == DEFERRED
    assert seen == [2] * 111
    assert waiting.dead == []
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition("put off ")[2] for line in warnings] == [
        f"{n} times since 2023-11-14T22:13:20+00:00, by Retry(count=False): it is never given up" for n in (10, 100)
    ]


def test_failures_in_between_count_and_crashes_too(waiting: Waiting) -> None:
    answers: list[Exception] = [
        Retry(delay=5, count=False),
        ValueError("odd"),
        Retry(delay=5, count=False),
        ValueError("at last"),
    ]

    def function(_: Message) -> None:
        raise answers.pop(0)

    chain = waiting.chain(function, max_attempts=3)
    assert chain(waiting.original()) == DEFERRED
    waiting.now += 5
    assert chain(waiting.envelope(attempts=1)) == Requeue(10.0)  # at its first attempt still
    assert chain(waiting.envelope(attempts=2)) == DEFERRED
    waiting.now += 5
    assert chain(waiting.envelope(attempts=2)) == DEAD  # the worker that had it before was killed
    assert b"ValueError: at last" in waiting.dead[0]


def test_its_delay_grows_by_the_schedule_where_it_names_none(waiting: Waiting) -> None:
    chain = waiting.chain(put_off())
    chain(waiting.original())
    for _ in range(2):
        waiting.now += waiting.published[-1][2]
        chain(waiting.envelope())
    assert [delay for _, _, delay in waiting.published] == [10, 20, 30]


def test_a_long_delay_that_does_not_count_goes_in_hops(waiting: Waiting) -> None:
    seen: list[int] = []
    waiting.chain(put_off(7200))(waiting.original(attempts=4))
    chain = waiting.chain(lambda message: seen.append(message.attempts))
    for _ in range(2):
        waiting.now += waiting.published[-1][2]
        chain(waiting.envelope())
    assert [delay for _, _, delay in waiting.published] == [3600, 3600]
    assert seen == [4]


def test_what_cannot_be_stored_now_is_given_back_and_counts_for_other_workers_alone(
    waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    waiting.refuse = PublishError("no broker")
    chain = waiting.chain(put_off(5), max_attempts=1)
    assert chain(waiting.original()) == Requeue(5, counts=False)
    assert (
        "cannot wait in topic orders.billing.later (no broker): given back, which is an attempt for other workers" in caplog.text
    )
    assert waiting.chain(put_off(2 * LONGEST))(waiting.original()) == Requeue(LONGEST, counts=False)
    assert waiting.dead == []
    for _ in range(int(PASSING / 50)):
        assert chain(waiting.original()) == Requeue(5, counts=False)
        waiting.now += 50
    assert chain(waiting.original()) == DEAD
    waiting.refuse = None
    assert chain(waiting.original()) == DEFERRED
    waiting.refuse = PublishError("no broker")
    assert chain(waiting.original()) == Requeue(5, counts=False)


def test_failures_to_store_it_that_are_far_apart_are_no_outage(waiting: Waiting) -> None:
    waiting.refuse = PublishError("no broker")
    chain = waiting.chain(put_off(5), max_attempts=1)
    for _ in range(3):
        assert chain(waiting.original()) == Requeue(5, counts=False)
        waiting.now += PASSING + 1


def test_a_wall_clock_that_is_set_forward_is_no_outage_either(waiting: Waiting) -> None:
    waiting.refuse = PublishError("no broker")
    chain = waiting.chain(put_off(5), max_attempts=1)
    assert chain(waiting.original()) == Requeue(5, counts=False)
    waiting.now += PASSING + 1
    waiting.set_forward = PASSING + 1
    assert chain(waiting.original()) == Requeue(5, counts=False)


@pytest.mark.parametrize("kind", [MessageRefused, BadMessage], ids=["by what its broker says", "by a limit that is known here"])
def test_where_it_never_can_wait_it_counts_and_the_log_says_so(
    kind: type[FrameworkError], waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    waiting.refuse = kind("too large with its envelope")
    assert waiting.chain(put_off(5))(waiting.original()) == Requeue(5)
    assert "cannot wait in topic orders.billing.later (too large with its envelope), so this attempt counts" in caplog.text
    waiting.refuse = None
    waiting.longest = 0.0
    chain = waiting.chain(put_off(5))
    assert [chain(waiting.original()), chain(waiting.original())] == [Requeue(0.0), Requeue(0.0)]
    assert caplog.text.count("each Retry(count=False) counts as an attempt: this broker keeps no delays") == 1
    given_back = waiting.original()
    given_back.connection.in_flight.clear()
    waiting.longest = LONGEST
    assert waiting.chain(put_off(5))(given_back) == Requeue(5)
    assert waiting.published == []


def test_a_policy_and_a_batch_say_it_as_well(waiting: Waiting) -> None:
    chain = waiting.chain(_raising(KeyError("busy")), policy={KeyError: Retry(delay=5, count=False)}, max_attempts=1)
    assert chain(waiting.original()) == DEFERRED
    named, rest = waiting.original(), waiting.original()

    def function(batch: Batch) -> None:
        batch.fail(named, Retry(delay=7, count=False))
        raise Retry(delay=5, count=False)

    assert waiting.chain(function, batch=2, max_attempts=1)([named, rest]) == {named: DEFERRED, rest: DEFERRED}
    assert sorted(delay for _, _, delay in waiting.published) == [5, 5, 7]


def _raising(error: Exception) -> Callable[[Message], None]:
    def function(_: Message) -> None:
        raise error

    return function


class Away(Retry, Backoff):
    """What a dependency is away for, as the store of ``framework.dedupe``."""


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize(("kind", "fault"), [(Retry, Fault.NONE), (Away, Fault.DEPENDENCY)])
def test_what_is_put_off_for_a_dependency_pauses_the_handler_all_the_same(
    waiting: Waiting, kind: type[Retry], fault: Fault, refused: bool
) -> None:
    def function(_: Message) -> None:
        raise kind("down", delay=5, count=False)

    chain = waiting.chain(function, max_attempts=3)
    waiting.refuse = PublishError("full", stored=False) if refused else None
    outcome = chain(waiting.original())
    if refused:
        assert (outcome, outcome.counts) == (Requeue(5.0, counts=False), False)
    else:
        assert (outcome, outcome.fault, outcome.pause) == (DEFERRED, fault, 5.0 * (kind is Away))


@pytest.mark.parametrize("seconds", [5.0, 2 * LONGEST])
def test_what_was_not_started_is_kept_for_so_long_and_goes_on_waiting_until_then(waiting: Waiting, seconds: float) -> None:
    """Also where the broker has it wait in several steps."""
    seen: list[int] = []
    chain = waiting.chain(lambda message: seen.append(message.attempts), max_attempts=3)
    room = LaterTopic(waiting.spec, waiting.defer, waiting.delays)
    assert room.keep(waiting.original(attempts=3), seconds)
    steps = [waiting.published[-1][2]]
    for step in steps:
        waiting.now += step
        if chain(waiting.envelope()) == DEFERRED:
            steps.append(waiting.published[-1][2])
    assert (sum(steps), seen) == (seconds, [3])


@pytest.mark.parametrize("error", [HandlerTimeout("30 s"), SystemExit()])
def test_a_time_that_is_over_while_it_is_stored_is_one_more_reason_why_it_is_not(waiting: Waiting, error: Exception) -> None:
    chain = waiting.chain(put_off(5), max_attempts=3)
    waiting.refuse = error
    outcome = chain(waiting.original())
    assert (outcome, outcome.counts) == (Requeue(5.0, counts=False), False)


def test_ctrl_c_while_it_is_stored_is_the_processs(waiting: Waiting) -> None:
    chain = waiting.chain(put_off(5), max_attempts=3)
    waiting.refuse = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        chain(waiting.original())
