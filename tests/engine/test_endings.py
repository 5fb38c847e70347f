"""Whom the engine tells of what came and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from framework.engine.endings import Endings
from framework.handler import make_spec
from framework.hooks import Ending, Finished, Observer
from framework.message import Message


class Arrivals(Observer):
    """Asks for what comes alone."""

    def __init__(self) -> None:
        self.ids: list[bytes] = []

    def received(self, messages: Sequence[Message], /) -> None:
        self.ids += [one.id for one in messages]


class Ends(Observer):
    def ended(self, message: Message, outcome: Ending, began: float, /) -> None: ...

    def finished(self, run: Finished, /) -> None: ...


def endings(*observers: Observer) -> Endings:
    def bill(message: Message) -> None: ...

    return Endings(replace(make_spec(bill, "orders", "billing"), middleware=observers))  # as settings put them there


@pytest.mark.parametrize(("observers", "wanted"), [((), False), ((Observer(),), False), ((Arrivals(),), True), ((Ends(),), True)])
def test_they_are_there_for_who_asks_for_what_comes_or_for_what_ends(observers: Any, wanted: bool) -> None:
    assert bool(endings(*observers)) is wanted


def test_who_asks_for_what_comes_alone_is_told_of_it() -> None:
    arrivals = Arrivals()
    endings(arrivals).came([Message(b"1", 0, 1, b"x", None), Message(b"2", 0, 1, b"y", None)])
    assert arrivals.ids == [b"1", b"2"]
