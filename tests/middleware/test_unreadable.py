"""A message whose body cannot be unpacked: no handler gets it, and it ends as one that failed."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from framework.errors import PublishError
from framework.handler import HandlerSpec
from framework.message import Message, Unreadable
from framework.middleware import compile_chain
from framework.middleware.later import LaterTopic
from framework.middleware.outcome import Dead, Fault, Requeue
from tests.middleware.test_chain import SUBSCRIPTION, Stored, header, message, stored

__all__ = ["stored"]
WHY = "a packed body that cannot be unpacked: it does not end"


def unreadable(attempts: int = 1) -> Message:
    return Unreadable(b"0123456789abcdef", 1_700_000_000_000_000_000, attempts, b"packed", SUBSCRIPTION, why=WHY)


def spec(function: Any, **options: Any) -> HandlerSpec:
    defaults: dict[str, Any] = {
        "topic": "orders", "channel": "billing", "decode": None, "concurrency": 1, "max_in_flight": 1, "timeout": 60.0,
        "max_attempts": 5, "batch": 0, "linger": 0.0,
    }  # fmt: skip
    return HandlerSpec(function=function, **{**defaults, **options})


def chain(called: list[Any], stored: Stored, **options: Any) -> Any:
    one = spec(called.append, **options)
    return compile_chain(one, publish=stored.publish, delay=lambda attempts: 10.0 * attempts, packed=True)


def test_it_comes_again_as_one_that_failed(stored: Stored) -> None:
    called: list[Any] = []
    outcome = chain(called, stored)(unreadable())
    assert (outcome, outcome.fault) == (Requeue(10.0), Fault.MESSAGE)
    assert not called
    assert not stored


@pytest.mark.parametrize("attempts", [5, 6], ids=["at its last attempt", "when its workers were killed at the last one"])
def test_after_its_last_attempt_it_is_a_dead_letter_that_says_why(stored: Stored, attempts: int) -> None:
    called: list[Any] = []
    assert isinstance(chain(called, stored)(unreadable(attempts)), Dead)
    assert not called
    [(topic, letter)] = stored
    assert topic == "orders.billing.dead"
    assert letter.endswith(b"\npacked")
    assert WHY in header(stored[0])["reason"]


def test_where_its_letter_cannot_be_stored_it_comes_again(stored: Stored) -> None:
    stored.refuse = PublishError("no broker", stored=False)
    assert chain([], stored)(unreadable(5)) == Requeue(50.0)


def test_without_a_limit_it_never_dies(stored: Stored) -> None:
    assert chain([], stored, max_attempts=0)(unreadable(1000)) == Requeue(10_000.0)


def test_the_others_of_its_batch_are_handled(stored: Stored) -> None:
    called: list[Any] = []
    bad, dying, good = unreadable(), unreadable(5), message()
    outcomes = chain(called, stored, batch=3)([bad, dying, good])
    assert outcomes[bad] == Requeue(10.0)
    assert isinstance(outcomes[dying], Dead)
    assert outcomes[good] is None
    assert [list(batch) for batch in called] == [[good]]


def test_a_batch_of_nothing_else_is_no_call(stored: Stored) -> None:
    called: list[Any] = []
    bad = unreadable()
    assert chain(called, stored, batch=3)([bad]) == {bad: Requeue(10.0)}
    assert not called


def test_it_never_waits_in_an_envelope_from_which_it_would_come_as_any_other() -> None:
    """One of three days, where the broker keeps delays of a minute."""
    kept: list[Any] = []
    later = LaterTopic(spec(print), lambda *what: kept.append(what))
    bad = unreadable(5)
    assert not later.must_keep(bad, 5)
    assert later.must_keep(message(attempts=5), 5)
    short = SUBSCRIPTION.limits
    long = 10.0 * 366 * 86_400
    assert short.max_requeue is None
    assert later.requeue(bad, Requeue(long)) == Requeue(366 * 86_400.0)
    assert not kept
    assert later.requeue(message(), Requeue(long)) != Requeue(366 * 86_400.0)
    assert kept


def test_what_ends_the_process_ends_it_here_too(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)
    one = spec(print)
    made = compile_chain(one, publish=stored.publish, delay=_interrupted, packed=True)
    with pytest.raises(KeyboardInterrupt):
        made(unreadable())


def _interrupted(attempts: int) -> float:
    raise KeyboardInterrupt
