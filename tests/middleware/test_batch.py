"""What becomes of each message of a batch, whatever its call raised or named, before anything is settled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from framework.errors import Backoff, HandlerTimeout, Reject, Retry, Skip
from framework.handler import make_spec
from framework.message import Batch, Message
from framework.middleware.batch import compile_batch, compile_batch_call
from framework.middleware.on_end import APART, OnEnd
from framework.middleware.outcome import DEAD, Requeue

Named = dict[Message, Any]


class Line:
    """A connection on which some messages are settled."""

    node, topic, channel = "a:1", "orders", "billing"

    def __init__(self) -> None:
        self.in_flight: dict[Message, float] = {}


class Case:
    """A batch handler that does as ``function`` says; the policies note what they are asked for."""

    def __init__(self, function: Callable[[Batch], None], attempts: tuple[int, ...] = (1, 1, 1), **options: Any) -> None:
        def handle(batch: Batch) -> None: ...

        spec = make_spec(handle, "orders", "billing", {"batch": 10, "max_attempts": 3, "timeout": 5, **options})
        self.line = Line()
        self.messages = [Message(b"%d" % number, 0, one, b"", self.line) for number, one in enumerate(attempts)]
        self.line.in_flight = dict.fromkeys(self.messages, 0.0)
        self.given_up: list[tuple[int, Any, bool]] = []
        self.failed: list[tuple[int, BaseException]] = []
        self.noted: list[tuple[Any, ...]] = []
        self.handle = compile_batch(
            spec, function, give_up=self._give_up, failed=self._failed, delay=lambda attempts: 10.0 * attempts,
            requeue=lambda message, outcome: outcome,
            means=lambda error: Reject("a rule") if isinstance(error, KeyError) else error,
            note=lambda message, words, what, error, count: self.noted.append((self.messages.index(message), what, count)),
        )  # fmt: skip

    def _give_up(self, message: Message, error: BaseException | None, *, told: bool = False) -> Any:
        self.given_up.append((self.messages.index(message), error, told))
        return DEAD

    def _failed(self, message: Message, error: BaseException) -> Any:
        self.failed.append((self.messages.index(message), error))
        return Requeue(1.0)

    def run(self) -> list[Any]:
        """The outcomes, by message."""
        outcomes = self.handle(self.messages)
        assert len(outcomes) == len(self.messages)
        return [outcomes[message] for message in self.messages]


def raising(error: BaseException, *named: int) -> Callable[[Batch], None]:
    """It names some messages before."""

    def function(batch: Batch) -> None:
        for number in named:
            batch.fail(batch[number], ValueError(str(number)))
        raise error

    return function


def sizes(seen: list[list[bytes]]) -> Callable[[Batch], None]:
    return lambda batch: seen.append([one.id for one in batch])


def test_what_has_no_attempts_left_is_given_up_before_the_call_which_has_the_others() -> None:
    seen: list[list[bytes]] = []
    case = Case(sizes(seen), (3, 4, 1))
    assert case.run() == [None, DEAD, None]
    assert (seen, case.given_up) == ([[b"0", b"2"]], [(1, None, False)])
    case = Case(sizes(seen), (4, 5))
    assert case.run() == [DEAD, DEAD]
    assert len(seen) == 1
    case = Case(sizes(seen), (99,), max_attempts=0)
    assert case.run() == [None]


def test_what_is_named_fails_by_itself_and_the_others_are_done() -> None:
    def function(batch: Batch) -> None:
        batch.fail(batch[0], Skip("enough"))
        batch.fail(batch[1], KeyError("a"))
        batch.fail(batch[2], error)
        batch.fail(Message(b"another's", 0, 1, b"", Line()), error)

    error = ValueError("odd")
    case = Case(function, (1, 1, 1, 1))
    assert case.run() == [None, DEAD, Requeue(1.0), None]
    assert case.failed == [(2, error)]
    assert [(number, type(why)) for number, why, _ in case.given_up] == [(1, Reject)]


def test_a_batch_that_fails_comes_again_with_the_delay_of_each_and_those_at_their_last_attempt_do_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = ValueError("odd")
    case = Case(raising(error, 1), (1, 1, 2, 3))
    assert case.run() == [Requeue(10.0), Requeue(1.0), Requeue(20.0), DEAD]
    assert case.given_up == [(3, error, True)]
    assert case.noted == [(0, "requeued", 2)]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info
    assert "a batch of 3 messages (first 0, attempt 1) failed: ValueError: odd" in record.getMessage()
    assert record.getMessage().endswith("2 are delivered again, 1 given up")


@pytest.mark.parametrize(("attempts", "notes"), [((3, 3), []), ((1, 3), [(0, "requeued", 1)]), ((1, 1), [(0, "requeued", 2)])])
def test_what_comes_again_is_noted_once_for_all(attempts: tuple[int, ...], notes: list[Any]) -> None:
    case = Case(raising(ValueError("odd")), attempts)
    case.run()
    assert case.noted == notes


def test_where_all_were_named_what_it_raised_then_is_nobodys() -> None:
    case = Case(raising(ValueError("odd"), 0, 1, 2))
    assert case.run() == [Requeue(1.0)] * 3
    assert (case.noted, len(case.failed)) == ([], 3)


def test_a_batch_that_is_skipped_is_done_but_for_what_it_named() -> None:
    assert Case(raising(Skip("enough"), 1)).run() == [None, Requeue(1.0), None]


def test_a_batch_that_is_rejected_is_given_up_but_for_what_is_settled_already() -> None:
    case = Case(raising(Reject("bad")))
    assert case.run() == [DEAD] * 3
    case = Case(raising(Reject("bad")))
    del case.line.in_flight[case.messages[1]]
    outcomes = case.handle(case.messages)
    assert outcomes == {case.messages[0]: DEAD, case.messages[2]: DEAD}


@pytest.mark.parametrize("on_timeout", ["retry", "reject"])
def test_a_batch_that_runs_out_of_time_comes_again_or_dies_as_its_handler_says(on_timeout: str) -> None:
    case = Case(raising(HandlerTimeout("too long")), on_timeout=on_timeout)
    assert case.run() == ([DEAD] * 3 if on_timeout == "reject" else [Requeue(10.0)] * 3)
    case = Case(raising(HandlerTimeout("too long")), on_timeout=on_timeout)
    del case.line.in_flight[case.messages[0]]
    assert len(case.handle(case.messages)) == (2 if on_timeout == "reject" else 3)


def test_a_retry_that_does_not_count_is_each_messages_own() -> None:
    error = Retry("busy", delay=5, count=False)
    case = Case(raising(error), (3, 1))
    assert case.run() == [Requeue(1.0)] * 2
    assert case.failed == [(0, error), (1, error)]
    case = Case(raising(Retry("busy", delay=5)), (1, 3))
    assert case.run() == [Requeue(5.0), DEAD]
    assert case.noted == []  # it is no failure


def test_a_batch_that_was_given_back_at_a_stop_is_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    case = Case(raising(ValueError("odd")))
    case.line.in_flight.clear()
    case.run()
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)
    assert record.getMessage().endswith("all were given back before, or their leases were lost")


def test_a_batch_whose_dependency_is_down_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    assert [one.delay for one in Case(raising(Backoff("down", delay=7))).run()] == [7.0] * 3
    assert caplog.records[0].getMessage().endswith("all are delivered again")


def test_what_is_meant_for_the_process_is_no_failure_of_a_batch() -> None:
    with pytest.raises(KeyboardInterrupt):
        Case(raising(KeyboardInterrupt())).run()


def decoding(seen: list[Any], *, as_list: bool = False) -> Callable[[Batch], None]:
    def handle(batch: Batch) -> None:
        seen.append(batch)

    spec = make_spec(handle, "orders", "billing", {"batch": 10})
    return compile_batch_call(replace(spec, decode=lambda message: int(message.body), as_list=as_list))


def test_what_cannot_be_decoded_fails_by_itself_and_what_was_judged_before_is_not_handed_over() -> None:
    seen: list[Any] = []
    messages = [Message(b"%d" % n, 0, 1, body, Line()) for n, body in enumerate((b"10", b"odd", b"12"))]
    batch = Batch(messages)
    decoding(seen)(batch)
    assert [list(one) for one in seen] == [[10, 12]]
    assert [type(why) for why in batch.outcomes.values()] == [ValueError]
    seen[0].fail(messages[0], KeyError("a"))
    assert set(batch.outcomes) == {messages[0], messages[1]}
    decoding(seen, as_list=True)(batch)
    assert seen[1] == [12]
    batch.fail(messages[2], KeyError("b"))
    decoding(seen)(batch)
    assert len(seen) == 2


def test_for_how_long_it_has_failed_on_end() -> None:
    on_end = OnEnd()
    assert on_end.failed(100.0, 101.0) == 1.0
    assert on_end.failed(100.5, 100.8) == pytest.approx(0.8)
    assert on_end.failed(101.0 + APART, 165.0) == 65.0
    assert on_end.failed(165.1 + APART, 230.0) == pytest.approx(230.0 - 165.1 - APART)
    on_end.worked()
    assert on_end.failed(231.0, 232.0) == 1.0
