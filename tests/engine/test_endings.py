"""Whom the engine tells of what came and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from framework.engine.breaker import Breaker
from framework.engine.credit import Credit
from framework.engine.elsewhere import Elsewhere
from framework.engine.endings import Endings
from framework.engine.ledger import Ledger
from framework.engine.settlement import Settlement
from framework.errors import AlreadySettled
from framework.handler import make_spec
from framework.hooks import Ending, Finished, Observer
from framework.message import Message
from framework.middleware.outcome import Requeue


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


class Line:
    """A connection that says of messages whose leases are gone that they are settled."""

    node, topic = "a:1", "orders"

    def finish(self, message: Message) -> None:
        if message.body == b"late":
            raise AlreadySettled("gone")

    def requeue(self, message: Message, _delay: float) -> None:
        self.finish(message)


class Said(Observer):
    def __init__(self) -> None:
        self.all: list[tuple[bytes, str]] = []

    def ended(self, message: Message, outcome: Ending, began: float, /) -> None:
        self.all.append((message.id, outcome))

    def finished(self, run: Finished, /) -> None:
        self.all += [(one, "finished together" if run.together else "finished") for one in run.ids]


@pytest.mark.parametrize("batch", [True, False])
def test_each_message_of_a_batch_is_said_to_have_ended_as_it_did(batch: bool) -> None:
    """A batch that was done is told of at once, but for those whose leases were lost before it was."""
    line, said, ledger = Line(), Said(), Ledger()
    bodies = {b"1": b"", b"2": b"late", b"3": b"", b"4": b"late", b"5": b""}
    outcomes = {b"1": None, b"2": None, b"3": Requeue(1.0), b"4": Requeue(1.0), b"5": None}
    messages = [Message(name, 0, 1, body, line) for name, body in bodies.items()]
    breaker = Breaker("bill", Credit(10, 1), lambda: 0, batches=batch, longest=None)
    settlement = Settlement(ledger, Elsewhere(ledger), breaker, lambda *_: None, endings(said))
    if batch:
        settlement.settle(messages, {message: outcomes[message.id] for message in messages}, 1.0)
    else:
        for message in messages:
            settlement.settle(message, outcomes[message.id], 1.0)
    done = "finished together" if batch else "finished"
    ends = {b"1": done, b"2": "lease_lost", b"3": "requeued", b"4": "lease_lost", b"5": done}
    assert sorted(said.all) == sorted(ends.items())
