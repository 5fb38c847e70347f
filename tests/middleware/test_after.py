"""Middleware that hears of each message once it is settled: which, in which order, and what its own failure changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from framework.handler import make_spec
from framework.hooks import Middleware
from framework.message import Batch, Message
from framework.middleware.after import compile_after
from framework.middleware.outcome import Requeue, Told
from tests.middleware.test_chain import message


class After(Middleware):
    def __init__(self, name: str, heard: list[Any], error: BaseException | None = None) -> None:
        self._name, self._heard, self._error = name, heard, error

    def after(self, message: Message, outcome: Any, /) -> None:
        self._heard.append((self._name, message.id, outcome))
        if self._error is not None:
            raise self._error


class Deaf(Middleware):
    """Asks for nothing."""


def spec(*middleware: Middleware, batch: bool = False) -> Any:
    def one(message: Message) -> None: ...

    def many(batch: Batch) -> None: ...

    made = make_spec(many, "orders", "billing", {"batch": 5}) if batch else make_spec(one, "orders", "billing")
    return replace(made, middleware=middleware)


def test_where_nobody_asks_for_it_nothing_is_around_the_chain() -> None:
    def chain(_: Any) -> None: ...

    assert compile_after(spec(), chain) is chain
    assert compile_after(spec(Deaf()), chain) is chain


def test_the_last_one_hears_first_and_one_that_fails_keeps_it_from_nobody(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []
    some = (After("a", heard), Deaf(), After("b", heard, SystemExit("odd")), After("c", heard))
    one = message()
    told = compile_after(spec(*some), lambda _: Requeue(3.0))(one)
    assert isinstance(told, Told)
    assert (told.outcome, told.message, heard) == (Requeue(3.0), one, [])
    told.tell(told.message, "requeued")
    assert heard == [(name, one.id, "requeued") for name in "cba"]
    assert "After fails after message" in caplog.text


def test_what_is_meant_for_the_process_is_passed_on() -> None:
    heard: list[Any] = []
    told: Any = compile_after(spec(After("a", heard), After("b", heard, KeyboardInterrupt())), lambda _: None)(message())
    with pytest.raises(KeyboardInterrupt):
        told.tell(told.message, "finished")
    assert len(heard) == 1


def test_of_a_batch_each_message_has_its_own_end() -> None:
    heard: list[Any] = []
    first, second = message(), message()
    outcomes: Any = compile_after(spec(After("a", heard), batch=True), lambda _: {first: None, second: Requeue(1.0)})(
        [first, second]
    )
    assert [(one.message, one.outcome) for one in outcomes.values()] == [(first, None), (second, Requeue(1.0))]
    assert list(outcomes) == [first, second]
    outcomes[second].tell(second, "lease_lost")
    assert heard == [("a", second.id, "lease_lost")]
