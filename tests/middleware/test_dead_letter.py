"""How a message is given up: what is remembered of it where that cannot be written down, and under which name it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from framework.errors import PublishError, Reject
from framework.handler import make_spec
from framework.message import Batch, Message, Unreadable
from framework.middleware import compile_chain, dead_letter
from framework.middleware.dead_letter import letters, topic_name
from framework.middleware.envelope import HOPS, _counted
from framework.middleware.outcome import DEAD, Requeue
from tests.middleware.test_chain import SUBSCRIPTION, Held, Stored, message


def chain_of(function: Any, stored: Stored, **more: Any) -> Any:
    def handle(message: Message) -> None:
        function(message)

    spec = make_spec(handle, "orders", "billing", {"max_attempts": 3})
    return compile_chain(spec, publish=stored.publish, delay=lambda attempts: 10.0, **more)


def named(number: int, attempts: int) -> Message:
    return Message(b"%016x" % number, 0, attempts, b"body", SUBSCRIPTION)


def test_the_reasons_of_so_many_letters_are_remembered_as_memory_allows_the_latest_ones(monkeypatch: Any) -> None:
    monkeypatch.setattr(dead_letter, "REMEMBERED", 2)
    stored = Stored()

    def fail(message: Message) -> None:
        raise ValueError(f"of {int(message.id, 16)}")

    handle = chain_of(fail, stored)
    stored.refuse = PublishError("full", stored=False)
    for number in (1, 2, 3):
        assert handle(named(number, 3)).delay == 10.0
    stored.refuse = None
    reasons = []
    for number in (1, 2, 3):
        assert handle(named(number, 4)) == DEAD
        reasons.append(json.loads(stored[-1][1].partition(b"\n")[0])["reason"].split(" from")[0])
    assert reasons == ["no answer", "ValueError: of 2", "ValueError: of 3"]
    assert handle(named(3, 4)) == DEAD
    assert b"no answer" in stored[-1][1], "it was said once, and what comes later is another's"


@pytest.mark.parametrize(("attempts", "outcome"), [(4, Requeue(0.0)), (3, Requeue(10.0))])
def test_of_what_was_given_back_no_letter_is_written(attempts: int, outcome: Requeue, monkeypatch: Any) -> None:
    """It is delivered again, and given up then: before a call, and after one."""
    stored, held = Stored(), Held()

    def fail(_: Message) -> None:
        raise ValueError("odd")

    one = message(attempts=attempts)
    monkeypatch.setattr(one.connection, "in_flight", held)
    held.given_back.append(one)
    made = chain_of(fail, stored)(one)
    assert (made.delay, stored) == (outcome.delay, [])


def test_what_cannot_be_read_fails_uncalled_and_what_is_beside_it_is_called() -> None:
    seen: list[Message] = []
    handle = chain_of(seen.append, Stored(), packed=True)
    good, bad = message(), Unreadable(b"1", 0, 1, b"body", SUBSCRIPTION, why="it is cut off")
    assert handle(good) is None
    assert handle(bad).delay == 10.0
    assert seen == [good]


def test_long_names_stay_the_same_for_ever() -> None:
    """A version that makes another of them would leave the letters of the one before alone."""
    assert topic_name("t" * 64, "c" * 64) == "t" * 48 + "-68a78f476d.dead"


def test_what_fails_for_a_reason_that_cannot_be_shown_is_given_up_all_the_same() -> None:
    class Odd(ValueError):
        @property
        def __notes__(self) -> list[str]:
            raise RuntimeError("none of your business")

    def fail(_: Message) -> None:
        raise Reject("no") from Odd()

    stored = Stored()
    assert chain_of(fail, stored)(message()) == DEAD
    header = json.loads(stored[-1][1].partition(b"\n")[0])
    assert header["reason"] == "Reject: no"
    assert header["traceback"] == "(its traceback cannot be had: RuntimeError: none of your business)"


@pytest.mark.parametrize("options", [{}, {"batch": 5}])
def test_the_log_shows_once_where_what_is_given_up_was_raised(options: dict[str, int], caplog: pytest.LogCaptureFixture) -> None:
    def one(_: Message) -> None:
        raise ValueError("odd")

    def many(_: Batch) -> None:
        raise ValueError("odd")

    spec = make_spec(many if options else one, "orders", "billing", {"max_attempts": 3, **options})
    handle = compile_chain(spec, publish=Stored().publish, delay=lambda attempts: 10.0)
    handle([message(attempts=3)] if options else message(attempts=3))
    shown = [record for record in caplog.records if record.exc_info]
    assert [record.exc_info[0] for record in shown] == [ValueError]  # type: ignore[index]


def test_a_letter_that_is_too_big_is_written_without_its_traceback_and_then_as_the_body_alone() -> None:
    full, short, bare = (one.partition(b"\n") for one in letters(message(), "r" * 100, "a traceback"))
    said, less = json.loads(full[0]), json.loads(short[0])
    assert (said["reason"], said["traceback"]) == ("r" * 100, "a traceback")
    assert less == {name: value for name, value in said.items() if name != "traceback"} | {"reason": "r" * 80}
    assert full[2] == short[2] == bare[0]


@pytest.mark.parametrize(
    ("said", "hops"),
    [("12", 12), ("0", 0), ("9" * 17, int("9" * 17)), ("9" * 18, 5), ("", 5), ("-1", 5), ("1.0", 5), ("\u0663", 5)],
)
def test_the_hops_that_headers_count_are_believed_where_they_are_a_number_that_can_be(said: str, hops: int) -> None:
    assert _counted({HOPS: said}, 5) == hops
    assert _counted({}, 5) == 5
