"""What a handler's own exceptions mean: said in its decorator, checked when it is imported."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import Backoff, BadHandler, HandlerTimeout, Reject, Retry
from framework.handler import make_spec
from framework.message import Batch, Message
from framework.middleware import compile_chain
from framework.middleware.outcome import DEAD, Fault, Requeue
from framework.middleware.policy import compile_policy, is_marked
from framework.transports.contract import Limits

LIMITS = Limits(60.0, 900.0, 2500)
SUBSCRIPTION = SimpleNamespace(topic="orders", channel="billing", node="a:4150", in_flight={}, limits=LIMITS)

POLICY = {
    ValueError: Reject,
    LookupError: Reject("not for us"),
    IndexError: Retry,
    ConnectionError: Backoff,
    PermissionError: Retry(delay=60),
    TimeoutError: Backoff("slow", delay=30),
}


def message() -> Message:
    made = Message(b"0123456789abcdef", 1_700_000_000_000_000_000, 1, b"body", SUBSCRIPTION)
    SUBSCRIPTION.in_flight[made] = 0.0
    return made


def chain(function: Any, letters: list[bytes], **options: Any) -> Any:
    spec = make_spec(function, "orders", "billing", {"policy": POLICY, **options})
    return compile_chain(spec, publish=lambda topic, body: letters.append(body), delay=lambda attempts: 10.0 * attempts)


def outcome(error: Exception) -> tuple[Any, Fault, list[str]]:
    """What becomes of a message whose handler raises ``error``, whose fault it is, and the reasons of the dead letters."""

    def function(_: Message) -> None:
        raise error

    letters: list[bytes] = []
    found = chain(function, letters)(message())
    return found, getattr(found, "fault", Fault.NONE), [json.loads(one.split(b"\n")[0])["reason"] for one in letters]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("odd"), (DEAD, Fault.NONE, ["Reject: ValueError: odd"])),
        (UnicodeError("a subclass"), (DEAD, Fault.NONE, ["Reject: UnicodeError: a subclass"])),
        (KeyError("x"), (DEAD, Fault.NONE, ["Reject: not for us"])),
        (IndexError("the nearest class decides"), (Requeue(10.0), Fault.NONE, [])),
        (ConnectionRefusedError(), (Requeue(10.0), Fault.DEPENDENCY, [])),
        (PermissionError(), (Requeue(60), Fault.NONE, [])),
        (TimeoutError(), (Requeue(30), Fault.DEPENDENCY, [])),
        (RuntimeError("no rule"), (Requeue(10.0), Fault.MESSAGE, [])),
        (Retry("itself", delay=5), (Requeue(5), Fault.NONE, [])),
        (HandlerTimeout("on_timeout's"), (Requeue(10.0), Fault.MESSAGE, [])),
    ],
)
def test_the_rule_of_the_nearest_class_decides(error: Exception, expected: tuple[Any, Fault, list[str]]) -> None:
    assert outcome(error) == expected


def test_the_traceback_still_shows_what_was_raised() -> None:
    def function(_: Message) -> None:
        raise ValueError("at this very line")

    letters: list[bytes] = []
    chain(function, letters)(message())
    [letter] = letters
    shown = json.loads(letter.split(b"\n")[0])["traceback"]
    assert 'raise ValueError("at this very line")' in shown


def test_it_holds_for_each_message_of_a_batch() -> None:
    bad, down, good = message(), message(), message()

    def function(batch: Batch) -> None:
        batch.fail(bad, ValueError("odd"))
        batch.fail(down, ConnectionError("gone"))

    letters: list[bytes] = []
    outcomes = chain(function, letters, batch=10)([bad, down, good])
    assert outcomes == {bad: DEAD, down: Requeue(10.0), good: None}
    assert outcomes[down].fault is Fault.DEPENDENCY
    [letter] = letters
    assert "ValueError: odd\n\nThe above exception was the direct cause" in json.loads(letter.split(b"\n")[0])["traceback"]

    def failing(batch: Batch) -> None:
        raise ValueError("all of them")

    assert chain(failing, letters, batch=10)([bad, good]) == {bad: DEAD, good: DEAD}


@pytest.mark.parametrize(
    "policy",
    [
        [ValueError],
        ValueError,
        {"ValueError": Reject},
        {ValueError: "reject"},
        {ValueError: KeyError},
        {ValueError: ValueError()},
        {KeyboardInterrupt: Reject},
        {Reject: Retry},
        {HandlerTimeout: Reject},
        {ValueError(): Reject},
    ],
)
def test_a_policy_that_cannot_be_meant_fails_at_import(policy: Any) -> None:
    with pytest.raises(BadHandler, match="is not a dict of exception classes, each with Retry, Reject or Backoff"):
        make_spec(lambda message: None, "orders", "billing", {"policy": policy})


@pytest.mark.parametrize("name", ["reject_on", "retry_on", "autoretry_for"])
def test_what_others_call_it_leads_to_it(name: str) -> None:
    with pytest.raises(BadHandler, match="did you mean 'policy'"):
        make_spec(lambda message: None, "orders", "billing", {name: (ValueError,)})


def test_what_a_policy_makes_of_an_error_is_marked_where_the_error_is() -> None:
    """A watch marks the error that it saw; it would tell of the same one twice, or of none."""
    seen, unseen = OSError("seen"), OSError("unseen")
    seen.seen = True  # type: ignore[attr-defined]
    for error, marked in ((seen, True), (unseen, False)):
        made = Retry("again")
        made.__cause__ = error
        assert [is_marked(one, "seen") for one in (error, made)] == [marked, marked]


@pytest.mark.parametrize(
    ("action", "made", "values"),
    [
        (Retry, Retry("KeyError: 'x'"), {"delay": None, "count": True}),
        (Retry(), Retry("KeyError: 'x'"), {"delay": None, "count": True}),
        (Retry("soon", delay=5, count=False), Retry("soon"), {"delay": 5, "count": False}),
        (Backoff(delay=7), Backoff("KeyError: 'x'"), {"delay": 7}),
        (Backoff("it is down"), Backoff("it is down"), {"delay": None}),
        (Reject(), Reject("KeyError: 'x'"), {}),
        (Reject("not for us"), Reject("not for us"), {}),
    ],
)
def test_what_a_rule_makes_of_an_error_says_why_and_names_its_cause(action: Any, made: Any, values: dict[str, Any]) -> None:
    """In its own words, or where it has none in those of the error."""

    def function(_: Message) -> None: ...

    error = KeyError("x")
    found: Any = compile_policy(make_spec(function, "orders", "billing", {"policy": {KeyError: action}}))(error)
    assert (type(found), found.reason, found.__cause__) == (type(made), made.reason, error)
    assert {name: getattr(found, name) for name in values} == values
