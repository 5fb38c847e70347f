"""Whom the engine tells of what came and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from framework.engine.breaker import Breaker
from framework.engine.credit import Credit
from framework.engine.elsewhere import Elsewhere
from framework.engine.endings import Endings, Run
from framework.engine.ledger import Ledger
from framework.engine.settlement import Settlement
from framework.engine.times import FAST
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


class Runs(Observer):
    """Notes what finished: the attempts, the ids, and when it was, monotonic."""

    def __init__(self) -> None:
        self.all: list[tuple[Any, ...]] = []

    def ended(self, message: Message, outcome: Ending, began: float, /) -> None: ...

    def finished(self, run: Finished, /) -> None:
        self.all.append((run.node, run.attempts, list(run.ids), round(run.began, 6), round(run.until, 6), run.together))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The wall clock is 1000 s ahead."""
    monkeypatch.setattr("framework.engine.endings.clock", lambda: 50.0)
    monkeypatch.setattr("framework.engine.endings._now", lambda: 1_050.0)
    return Runs()


def test_a_run_is_told_of_when_it_ends_and_begins_with_its_first_message(runs: Runs) -> None:
    told, run, line = endings(runs), Run(), Line()
    told.cut(run, 9.0)
    ids = run.ids
    told.begin(run, Message(b"1", 0, 2, b"", line), 10.0)
    ids += [b"1", b"2"]
    told.begin(run, Message(b"3", 0, 3, b"", line), 12.0)
    assert runs.all == [("a:1", 2, [b"1", b"2"], 1_010.0, 1_012.0, False)]
    assert (run.attempts, run.connection, run.began, run.ids) == (3, line, 12.0, [])
    ids.append(b"3")
    told.cut(run, 13.0)
    told.cut(run, 14.0)
    assert runs.all[1:] == [("a:1", 3, [b"3"], 1_012.0, 1_013.0, False)]
    assert run.connection is None
    assert run.ids is ids


@pytest.mark.parametrize(
    ("ids", "started", "now", "wanted"),
    [
        ([b"1"], 0.0, FAST, []),  # not for long
        ([b"1"], 0.0, 1.0, [([b"1"], 1_000.0, 1_001.0)]),
        ([b"1", b"2"], 1.0 - FAST / 2, 1.0, [([b"1", b"2"], 1_000.0, 1_001.0)]),
        ([b"1", b"2"], 0.5, 1.0, [([b"1"], 1_000.0, 1_000.5), ([b"2"], 1_000.5, 1_001.0)]),
        ([b"1", b"2", b"3"], 0.5, 1.0, [([b"1", b"2"], 1_000.0, 1_000.5), ([b"3"], 1_000.5, 1_001.0)]),
    ],
)
def test_a_run_that_lasts_is_told_of_and_a_call_that_lasts_by_itself(
    runs: Runs, ids: list[bytes], started: float, now: float, wanted: Any
) -> None:
    told, run = endings(runs), Run()
    told.begin(run, Message(b"1", 0, 1, b"", Line()), 0.0)
    held = run.ids
    held += ids
    told.look(run, started, now)
    assert runs.all == [("a:1", 1, *one, False) for one in wanted]
    assert run.ids is held
    assert held == ([] if wanted else ids)


def test_what_was_finished_before_a_call_that_takes_long_is_told_of_meanwhile(runs: Runs) -> None:
    told, run = endings(runs), Run()
    told.begin(run, Message(b"1", 0, 1, b"", Line()), 10.0)
    run.ids.append(b"1")
    told.look_at([SimpleNamespace(run=None, started=1.0), SimpleNamespace(run=run, started=11.0)])  # type: ignore[list-item]
    assert runs.all == [("a:1", 1, [b"1"], 1_010.0, 1_011.0, False)]


class Envelopes(Line):
    topic = "orders.billing.later"


def test_a_batch_is_told_of_by_node_and_attempts_and_what_waits_on_is_not(runs: Runs) -> None:
    line, other = Line(), Line()
    other.node = "b:1"
    told = endings(runs)
    told.together([Message(name, 0, attempts, b"", where) for name, attempts, where in (
        (b"1", 1, line), (b"2", 1, line), (b"3", 2, line), (b"4", 1, other), (b"5", 1, Envelopes()),
    )], 40.0)  # fmt: skip
    at = (1_040.0, 1_050.0, True)
    assert runs.all == [("a:1", 1, [b"1", b"2"], *at), ("a:1", 2, [b"3"], *at), ("b:1", 1, [b"4"], *at)]


def test_an_envelope_that_waits_on_has_not_ended_and_what_came_in_one_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.engine.endings.clock", lambda: 50.0)
    monkeypatch.setattr("framework.engine.endings._now", lambda: 1_050.0)
    heard: list[tuple[bytes, str, float]] = []

    class Notes(Observer):
        def ended(self, message: Message, outcome: Ending, began: float, /) -> None:
            heard.append((message.id, outcome, began))

    told = endings(Notes())
    envelope, inside, plain = (Message(n, 0, 1, b"", line) for n, line in ((b"1", Envelopes()), (b"2", Line()), (b"3", Line())))
    told.ended(envelope, envelope, "requeued", 10.0)
    assert heard == []
    told.ended(envelope, inside, "finished", 10.0)
    told.ended(plain, plain, "requeued", 11.0)
    told.ended(plain, inside, "dead", 12.0)
    assert heard == [(b"2", "finished", 1_010.0), (b"3", "requeued", 1_011.0), (b"2", "dead", 1_012.0)]
