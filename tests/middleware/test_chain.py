"""The policies around a handler's function: what each exception becomes, and what a dead letter holds."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import Backoff, BadMessage, HandlerTimeout, PublishError, Reject, Retry, UndecodablePayload
from framework.handler import HandlerSpec
from framework.message import Message
from framework.middleware import compile_chain
from framework.middleware.dead_letter import topic_name
from framework.middleware.outcome import DEAD, Fault, Requeue
from framework.middleware.retry import describe
from framework.names import is_valid
from framework.transports.contract import Limits


class Held:
    """All that there is, unless it was given back."""

    def __init__(self) -> None:
        self.given_back: list[Message] = []

    def __contains__(self, message: object) -> bool:
        return not any(message is one for one in self.given_back)


LIMITS = Limits(60.0, 900.0, 2500)
SUBSCRIPTION = SimpleNamespace(topic="orders", channel="billing", node="a:4150", in_flight=Held(), limits=LIMITS)


def message(body: bytes = b"body", attempts: int = 1) -> Message:
    return Message(b"0123456789abcdef", 1_700_000_000_000_000_000, attempts, body, SUBSCRIPTION)


class Stored(list[tuple[str, bytes]]):
    """Where dead letters go; ``refuse`` makes it raise."""

    refuse: Exception | None = None
    max_size = 10**6

    def publish(self, topic: str, body: bytes) -> None:
        if self.refuse is not None:
            raise self.refuse
        if len(body) > self.max_size:
            raise BadMessage(f"{len(body)} bytes are over the maximum")
        self.append((topic, body))


@pytest.fixture
def stored() -> Stored:
    return Stored()


def chain(function: Any, stored: Stored, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "topic": "orders", "channel": "billing", "decode": None, "concurrency": 1, "max_in_flight": 1, "timeout": 60.0,
        "max_attempts": 5, "batch": 0, "linger": 0.0,
    }  # fmt: skip
    spec = HandlerSpec(function=function, **{**defaults, **options})
    return compile_chain(spec, publish=stored.publish, delay=lambda attempts: 10.0 * attempts)


def header(letter: tuple[str, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(letter[1].split(b"\n")[0])
    return found


def raising(error: BaseException) -> Any:
    def function(_: Any) -> None:
        raise error

    return function


def test_returning_finishes_whatever_is_returned(stored: Stored) -> None:
    assert chain(lambda m: "ignored", stored)(message()) is None


def test_the_function_gets_what_decode_makes_of_the_message(stored: Stored) -> None:
    got: list[Any] = []
    chain(got.append, stored, decode=lambda m: m.body.decode())(message(b"text"))
    assert got == ["text"]


@pytest.mark.parametrize("error", [ValueError("x"), HandlerTimeout("x"), SystemExit(1), Retry("x")])
def test_raising_requeues_by_the_schedule(stored: Stored, error: BaseException) -> None:
    assert chain(raising(error), stored)(message(attempts=3)) == Requeue(30.0)
    assert not stored


def test_retry_says_its_own_delay(stored: Stored) -> None:
    assert chain(raising(Retry(delay=0)), stored)(message()) == Requeue(0)
    assert chain(raising(Retry(delay=7.5)), stored)(message()) == Requeue(7.5)


def test_an_interrupt_of_the_process_is_not_swallowed(stored: Stored) -> None:
    with pytest.raises(KeyboardInterrupt):
        chain(raising(KeyboardInterrupt()), stored)(message())


@pytest.mark.parametrize("error", [Reject("no such customer"), UndecodablePayload("no such customer")])
def test_what_is_rejected_becomes_a_dead_letter_that_says_why(stored: Stored, error: Exception) -> None:
    assert chain(raising(error), stored)(message(b"raw\nbody", attempts=2)) is DEAD
    [(topic, letter)] = stored
    header, _, body = letter.partition(b"\n")
    told = json.loads(header)
    assert topic == "orders.billing.dead"
    assert body == b"raw\nbody"
    assert {key: told[key] for key in ("topic", "channel", "id", "node", "attempts", "published")} == {
        "topic": "orders", "channel": "billing", "id": "0123456789abcdef", "node": "a:4150", "attempts": 2,
        "published": "2023-11-14T22:13:20+00:00",
    }  # fmt: skip
    assert told["reason"].endswith("no such customer")
    assert "Traceback" in told["traceback"]
    assert told["dead"] > told["published"]


def test_a_message_without_attempts_left_is_dead_lettered_before_the_function_runs(stored: Stored) -> None:
    calls: list[Message] = []
    handle = chain(calls.append, stored, max_attempts=3)
    assert handle(message(attempts=3)) is None
    assert handle(message(attempts=4)) is DEAD
    assert len(calls) == 1
    assert header(stored[0])["reason"] == (
        "no answer from the last of max_attempts=3 attempts: "
        "its worker was killed, its lease was over, or the limit was higher then"
    )


@pytest.mark.parametrize(
    "error", [ValueError("odd"), HandlerTimeout("too long"), SystemExit(1), Retry("closed"), Backoff("down")]
)
def test_the_failure_of_the_last_attempt_is_the_end_and_its_cause(stored: Stored, error: BaseException, caplog: Any) -> None:
    handle = chain(raising(error), stored, max_attempts=3)
    assert handle(message(attempts=2)) == Requeue(20.0)
    caplog.clear()
    assert handle(message(attempts=3)) == DEAD
    told = header(stored[0])
    assert told["reason"] == describe(error)
    assert f"{type(error).__name__}" in told["traceback"]
    assert "raise error" in told["traceback"]
    [record] = caplog.records
    assert f"given up at attempt 3: {describe(error)}; dead letter in topic orders.billing.dead" in record.getMessage()
    assert "delivered again" not in caplog.text


@pytest.mark.parametrize(
    ("error", "fault", "pause"),
    [
        (ValueError(), Fault.MESSAGE, 0.0),
        (Retry(), Fault.NONE, 0.0),
        (Reject(), Fault.NONE, 0.0),
        (Backoff(delay=30), Fault.DEPENDENCY, 30.0),
    ],
)
def test_a_failure_that_ends_a_message_is_whoever_s_fault_it_would_be_else(
    stored: Stored, error: Exception, fault: Fault, pause: float
) -> None:
    outcome = chain(raising(error), stored, max_attempts=1)(message())
    assert (outcome.fault, outcome.pause) == (fault, pause)


def test_what_was_given_back_meanwhile_is_not_given_up_at_its_last_attempt(stored: Stored) -> None:
    given_back = message(attempts=3)

    def function(job: Message) -> None:
        SUBSCRIPTION.in_flight.given_back.append(job)
        raise HandlerTimeout("the worker stops")

    assert chain(function, stored, max_attempts=3)(given_back) == Requeue(30.0)
    assert not stored


def test_a_cause_whose_letter_could_not_be_stored_is_in_the_letter_that_is(stored: Stored) -> None:
    handle = chain(raising(ValueError("odd")), stored, max_attempts=3)
    stored.refuse = PublishError("no broker")
    assert handle(message(attempts=3)) == Requeue(30.0)
    stored.refuse = None
    assert handle(message(attempts=4)) is DEAD
    assert header(stored[0])["reason"] == "ValueError: odd"
    assert "raise error" in header(stored[0])["traceback"]


def test_no_limit_of_attempts_is_zero(stored: Stored) -> None:
    assert chain(lambda m: None, stored, max_attempts=0)(message(attempts=65535)) is None


def test_a_dead_letter_that_cannot_be_stored_sends_the_message_round_again(stored: Stored) -> None:
    stored.refuse = PublishError("no broker")
    assert chain(raising(Reject()), stored)(message()) == Requeue(10.0)


def test_a_dead_letter_over_the_brokers_size_is_stored_without_its_traceback_then_without_its_header(stored: Stored) -> None:
    body = b"x" * 1000
    stored.max_size = 1000 + 300
    assert chain(raising(Reject()), stored)(message(body)) is DEAD
    stored.max_size = 1000
    assert chain(raising(Reject()), stored)(message(body)) is DEAD
    with_header, bare = (letter for _, letter in stored)
    assert "traceback" not in json.loads(with_header.split(b"\n")[0])
    assert bare == body


def test_a_body_that_no_broker_takes_any_more_is_kept_where_it_is(stored: Stored) -> None:
    stored.max_size = 10
    assert chain(raising(Reject()), stored)(message(b"x" * 100)) == Requeue(10.0)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_error_that_cannot_say_what_it_is_fails_its_message_alone(stored: Stored) -> None:
    assert chain(raising(Unspeakable()), stored)(message()) == Requeue(10)


def test_a_reason_that_cannot_be_encoded_is_escaped(stored: Stored, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "framework.middleware")  # pytest's processes cannot tell each other of such a traceback
    name = b"caf\xe9".decode(errors="surrogateescape")
    assert chain(raising(Reject(f"no file {name}")), stored)(message()) is DEAD
    [(_, letter)] = stored
    header = json.loads(letter.split(b"\n")[0])
    assert header["reason"] == "Reject: no file caf\\udce9"
    assert "caf\\udce9" in header["traceback"]


def test_failures_are_logged_once_with_a_traceback_only_for_the_unexpected(stored: Stored, caplog: Any) -> None:
    with caplog.at_level(logging.INFO):
        chain(raising(ValueError("surprise")), stored)(message(b"secret"))
        chain(raising(Retry("as planned")), stored)(message(b"secret"))
    surprise, planned = caplog.records
    assert surprise.getMessage() == (
        "handler orders/billing: message 0123456789abcdef failed at attempt 1: ValueError: surprise; delivered again in 10.0 s"
    )
    assert (surprise.levelname, planned.levelname) == ("ERROR", "INFO")
    assert surprise.exc_info
    assert not planned.exc_info
    assert "secret" not in caplog.text


def test_a_handler_that_ran_out_of_time_is_logged_with_the_line_where_it_was(stored: Stored, caplog: Any) -> None:
    chain(raising(HandlerTimeout("too long")), stored)(message())
    [record] = caplog.records
    assert (record.levelname, bool(record.exc_info)) == ("ERROR", True)


@pytest.mark.parametrize("options", [{}, {"batch": 10}])
def test_of_what_was_given_back_before_it_is_not_said_that_it_comes_again_later(
    stored: Stored, caplog: Any, options: dict[str, Any]
) -> None:
    gone = message()

    def function(_: Any) -> None:
        SUBSCRIPTION.in_flight.given_back.append(gone)  # as at a stop, when the time to drain is over
        raise HandlerTimeout("the worker stops")

    chain(function, stored, **options)([gone] if options else gone)
    [record] = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert "given back before" in record.getMessage()
    assert "delivered again" not in record.getMessage()


def test_a_batch_without_a_word_is_finished(stored: Stored) -> None:
    messages = [message(), message()]
    assert chain(lambda batch: None, stored, batch=10)(messages) == dict.fromkeys(messages)


def test_a_batch_settles_each_message_as_it_was_told(stored: Stored) -> None:
    good, later, bad, spent = message(), message(attempts=2), message(), message(attempts=9)
    seen: list[Message] = []

    def function(batch: Any) -> None:
        seen.extend(batch)
        batch.fail(later, ValueError("not now"))
        batch.fail(bad, Reject("never"))
        batch.fail(message(), Reject("of another batch"))

    outcomes = chain(function, stored, batch=10)([good, later, bad, spent])
    assert outcomes == {good: None, later: Requeue(20.0), bad: DEAD, spent: DEAD}
    assert seen == [good, later, bad]
    assert len(stored) == 2


@pytest.mark.parametrize(
    "error",
    [OSError("disk full"), HandlerTimeout("too long"), Retry("not yet"), Backoff("down")],
    ids=lambda one: type(one).__name__,
)
def test_a_batch_that_raises_is_requeued_whole_each_by_its_attempts_and_logged_once(
    error: BaseException, stored: Stored, caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    first, second = message(attempts=1), message(attempts=2)
    outcomes = chain(raising(error), stored, batch=10)([first, second])
    assert [one.delay for one in outcomes.values()] == [10.0, 20.0]
    assert len(caplog.records) == 1


def test_a_batch_of_one_that_raises_is_named_in_the_log(stored: Stored, caplog: Any) -> None:
    only = message(attempts=2)
    assert chain(raising(OSError("disk full")), stored, batch=10)([only]) == {only: Requeue(20.0)}
    [record] = caplog.records
    assert record.getMessage() == (
        "handler orders/billing: a batch of 1 messages (first 0123456789abcdef, attempt 2) failed: OSError: disk full; "
        "all are delivered again"
    )
    assert (record.levelname, bool(record.exc_info)) == ("ERROR", True)


def test_a_batch_that_raises_gives_up_those_that_have_no_attempts_left(stored: Stored, caplog: Any) -> None:
    first, last = message(attempts=1), message(attempts=5)
    outcomes = chain(raising(OSError("disk full")), stored, batch=10)([first, last])
    assert outcomes == {first: Requeue(10.0), last: DEAD}
    assert outcomes[last].fault is Fault.MESSAGE
    assert header(stored[0])["reason"] == "OSError: disk full"
    assert "failed: OSError: disk full; 1 are delivered again, 1 given up" in caplog.text
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]  # once


def test_a_batch_that_runs_out_of_time_is_requeued_whole_or_rejected_whole(stored: Stored) -> None:
    first, second = message(attempts=1), message(attempts=2)
    late = raising(HandlerTimeout("too long"))
    assert chain(late, stored, batch=10)([first, second]) == {first: Requeue(10.0), second: Requeue(20.0)}
    assert chain(late, stored, batch=10, on_timeout="reject")([first, second]) == {first: DEAD, second: DEAD}


def test_what_a_batch_handler_said_of_a_message_before_it_raised_holds(stored: Stored) -> None:
    good, bad = message(), message()

    def function(batch: Any) -> None:
        batch.fail(bad, Reject("never"))
        raise OSError("disk full")

    outcomes = chain(function, stored, batch=10)([good, bad])
    assert outcomes == {good: Requeue(10.0), bad: DEAD}
    assert header(stored[0])["reason"] == "Reject: never"


def test_a_batch_that_is_rejected_is_dead_lettered_whole(stored: Stored) -> None:
    first, second = message(b"1"), message(b"2")
    assert chain(raising(Reject("of last year")), stored, batch=10)([first, second]) == {first: DEAD, second: DEAD}
    assert [letter.split(b"\n", 1)[1] for _, letter in stored] == [b"1", b"2"]
    assert all(json.loads(letter.split(b"\n")[0])["reason"] == "Reject: of last year" for _, letter in stored)


def test_a_batch_with_no_attempts_left_at_all_does_not_call_the_function(stored: Stored) -> None:
    assert chain(lambda batch: pytest.fail("called"), stored, batch=10)([spent := message(attempts=6)]) == {spent: DEAD}


def test_one_dead_letter_that_cannot_be_stored_does_not_fail_the_others_of_its_batch(stored: Stored) -> None:
    stored.refuse = PublishError("no broker")
    good, spent = message(), message(attempts=6)
    assert chain(lambda batch: None, stored, batch=10)([good, spent]) == {good: None, spent: Requeue(60.0)}


def test_the_dead_letter_topic_is_always_a_valid_name_and_tells_long_ones_apart() -> None:
    assert topic_name("orders", "billing") == "orders.billing.dead"
    assert topic_name("orders#ephemeral", "tail#ephemeral") == "orders.tail.dead"
    first, second = topic_name("t" * 64, "c" * 63 + "1"), topic_name("t" * 64, "c" * 63 + "2")
    assert first != second
    assert is_valid(first)
    assert len(first) == 64


@pytest.mark.parametrize("batch", [0, 1])
def test_a_retry_that_has_to_count_is_the_end_at_the_last_attempt_and_its_cause(batch: int, stored: Stored) -> None:
    """Nothing can wait elsewhere here. It was delivered once more, and dead-lettered unrun with nothing said of why."""
    handle, last = chain(raising(Retry("no room", delay=5, count=False)), stored, batch=batch), message(attempts=5)
    assert (handle([last])[last] if batch else handle(last)) == DEAD
    [letter] = stored
    assert header(letter)["reason"] == "Retry: no room"
    before = message(attempts=4)
    assert (handle([before])[before] if batch else handle(before)) == Requeue(5)
