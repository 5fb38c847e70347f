"""Who is told of a failure: observers of what a call raised, and the list of last failures of what became of it. Each once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from framework.errors import Backoff, HandlerTimeout, Reject, Retry
from framework.handler import make_spec
from framework.hooks import Middleware, Observer
from framework.message import Batch, Message
from framework.middleware import compile_chain
from framework.middleware.failures import KEPT, Failures, where_raised
from framework.middleware.outcome import DEAD, Dead, Fault
from tests.middleware.test_chain import Held, message

Noted = list[tuple[str, str, int]]


class Sees(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[str, BaseException | None]] = []

    def failed(self, job: Any, error: BaseException | None, /) -> None:
        self.seen.append(("failed", error))

    def missed(self, job: Any, error: BaseException, /) -> None:
        self.seen.append(("missed", error))


class Blind(Observer):
    """Asks for nothing."""


class Plain(Middleware):
    """An app's own, which is told nothing."""

    def around(self, job: Any, call: Callable[[], None], /) -> None:
        call()


def raising(error: BaseException | None) -> Callable[[Any], None]:
    def function(job: Any) -> None:
        if error is not None:
            raise error

    return function


def chain_of(function: Callable[[Any], None], *observers: Middleware, **more: Any) -> Any:
    """``batch``, ``policy``, ``max_attempts``, ``on_timeout``: the handler's; the others as ``compile_chain`` has them."""
    options = {name: more.pop(name) for name in ("batch", "policy", "max_attempts", "on_timeout") if name in more}

    def one(message: Message) -> None:
        function(message)

    def many(batch: Batch) -> None:
        function(batch)

    spec = replace(make_spec(many if "batch" in options else one, "orders", "billing", options), middleware=observers)
    return compile_chain(spec, publish=lambda topic, body: None, delay=lambda attempts: 10.0, **more)


FORMS: dict[str, dict[str, Any]] = {
    "alone": {},
    "by a policy": {"policy": {ValueError: Retry(delay=1)}},
    "together": {"batch": 5},
    "together by a policy": {"batch": 5, "policy": {ValueError: Retry(delay=1)}},
}


def jobs(options: dict[str, Any], *messages: Message) -> Any:
    return list(messages) if "batch" in options else messages[0]


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("options", FORMS.values(), ids=list(FORMS))
@pytest.mark.parametrize("error", [None, ValueError("odd"), Reject("no")])
def test_an_observer_is_told_once_of_what_was_raised_and_not_of_what_is_made_of_it(
    options: dict[str, Any], error: BaseException | None, elsewhere: bool
) -> None:
    sees, function = Sees(), raising(error)
    more = {"call": function} if elsewhere else {}
    made = chain_of(function, Blind(), Plain(), sees, **options, **more)(jobs(options, message(b"1"), message(b"2")))
    finished = not any(made.values()) if isinstance(made, dict) else made is None
    assert finished == (error is None)
    assert sorted(sees.seen, key=str) == ([] if error is None else [("failed", error)] + [("missed", error)] * elsewhere)


@pytest.mark.parametrize("options", [FORMS["together"], FORMS["together by a policy"]])
def test_of_a_batch_that_returns_an_observer_is_told_where_some_of_it_failed(options: dict[str, Any]) -> None:
    sees, good = Sees(), message(b"good")

    def function(batch: Batch) -> None:
        for one in batch:
            if one is not good:
                batch.fail(one, ValueError("odd"))

    chain = chain_of(function, sees, **options)
    chain([good])
    assert sees.seen == []
    chain([good, message(b"bad")])
    assert sees.seen == [("failed", None)]


def noted(function: Callable[[Any], None], *messages: Message, **options: Any) -> tuple[Any, Noted]:
    """What became of them, and what the list of failures is told: the words, what became of it, and of how many."""
    found: Noted = []

    def note(_: Message, words: str, became: str, error: BaseException | None, messages: int = 1) -> None:
        found.append((words, became, messages))

    return chain_of(function, note=note, **options)(jobs(options, *messages)), found


@pytest.mark.parametrize(
    ("error", "attempts", "expected"),
    [
        (ValueError("odd"), 1, [("ValueError: odd", "requeued", 1)]),
        (Backoff("down"), 1, [("Backoff: down", "requeued", 1)]),
        (Retry("later"), 1, []),
        (ValueError("odd"), 3, [("ValueError: odd", "dead", 1)]),
        (Retry("later"), 3, [("Retry: later", "dead", 1)]),
        (Reject("no"), 1, [("Reject: no", "dead", 1)]),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_what_failed_is_noted_with_what_became_of_it(error: Exception, attempts: int, expected: Noted, together: bool) -> None:
    options = {"batch": 5} if together else {}
    assert noted(raising(error), message(b"1", attempts), max_attempts=3, **options)[1] == expected


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([1, 1, 2], [("requeued", 3)]),
        ([1, 3, 2], [("dead", 1), ("requeued", 2)]),
        ([3, 3], [("dead", 1), ("dead", 1)]),
    ],
)
def test_a_batch_that_fails_is_one_failure_of_so_many_messages_and_each_that_dies_is_one(
    attempts: list[int], expected: list[tuple[str, int]]
) -> None:
    messages = [message(b"%d" % n, attempt) for n, attempt in enumerate(attempts)]
    _, found = noted(raising(ValueError("odd")), *messages, batch=5, max_attempts=3)
    assert sorted((became, count) for _, became, count in found) == expected


def test_of_a_batch_that_ran_out_of_time_those_die_that_were_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although others were: at a stop, or as their leases were lost."""
    held = Held()
    kept, gone = message(b"kept"), message(b"gone")
    monkeypatch.setattr(kept.connection, "in_flight", held)
    held.given_back.append(gone)
    outcomes, found = noted(raising(HandlerTimeout("30 s")), kept, gone, batch=5, on_timeout="reject")
    assert outcomes == {kept: Dead(Fault.MESSAGE)}
    assert found == [("HandlerTimeout: 30 s", "dead", 1)]
    assert noted(raising(Reject("no")), kept, gone, batch=5)[0] == {kept: DEAD}


def test_the_list_of_failures_counts_all_and_keeps_the_last() -> None:
    failures = Failures()
    assert failures.count == 0
    for number in range(KEPT + 3):
        failures.note(message(attempts=2), f"ValueError: {number}", "requeued", None, 7)
    assert (failures.count, len(failures.last)) == (KEPT + 3, KEPT)
    failures.note(message(), "ValueError: alone", "dead")
    assert failures.last.pop().messages == 1
    last = failures.last[-1]
    assert last[1:] == ("0123456789abcdef", 2, "a:4150", 7, f"ValueError: {KEPT + 2}", "", "requeued")


def test_where_it_was_raised_is_the_innermost_line_of_the_app() -> None:
    """Not that of the framework which it called; nothing where none of its frames is the app's."""

    def inner() -> None:
        Batch([message()]).fail(message(b"a stranger"), "no exception")  # type: ignore[arg-type]

    with pytest.raises(Exception, match=r".") as caught:
        inner()
    assert where_raised(caught.value).startswith(f"{__file__}:{inner.__code__.co_firstlineno + 1} in ")
    assert where_raised(caught.value).endswith("inner")
    assert where_raised(None) == where_raised(ValueError("never raised")) == ""


def test_a_path_that_is_no_utf_8_is_shown_escaped() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", "/caf\udce9/shop.py", "exec"))
    assert where_raised(caught.value) == "/caf\\udce9/shop.py:1 in <module>"
