"""What a handler asks for, over all its connections, and when a breaker holds it back: both by themselves, without a broker."""

from __future__ import annotations

import math
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from framework.engine import backoff
from framework.engine import breaker as breakers
from framework.engine.backoff import FEWEST_FAILURES, VOTES
from framework.engine.breaker import Breaker
from framework.engine.flow import Flow
from framework.engine.in_flight import InFlight
from framework.engine.ledger import Ledger
from framework.message import Batch, Message
from framework.middleware.outcome import Dead, Fault, Requeue
from framework.transports.contract import Limits
from tests.engine.conftest import make_spec

FAILED = Requeue(1.0, Fault.MESSAGE)
DOWN = Requeue(1.0, Fault.DEPENDENCY)


def bill(message: Message) -> None: ...


def bill_many(messages: Batch) -> None: ...


class Timer:
    active = False

    def start(self, *_: object) -> None:
        self.active = True

    def stop(self) -> None:
        self.active = False

    close = stop


class Case:
    """The flow of a handler."""

    def __init__(self, *, batch: int = 0, usable: int | None = None, **options: Any) -> None:
        self.roused = 0
        self.put_off: list[object] = []
        self.waits: list[float] = []
        self.ledger = Ledger()
        hub = SimpleNamespace(loop=SimpleNamespace(timer=lambda *_: Timer()))
        turns: Any = SimpleNamespace(mean=0.001, idle=1.0)
        self.waiting: Any = SimpleNamespace(
            put_off_all=lambda: self.put_off.append("all"), put_off_late=self.put_off.append,
            wait_at_most=self.waits.append, unstarted=SimpleNamespace(given_back=0),
        )  # fmt: skip
        self.slots: Any = SimpleNamespace(full=True)
        self.remote: Any = None if usable is None else SimpleNamespace(usable=usable)
        self.flow = Flow(
            hub, turns, make_spec(bill_many if batch else bill, batch=batch, **options), self.ledger, self.waiting,
            slots=self.slots, remote=self.remote, rouse=self._rouse, longest_pause=None,
        )  # fmt: skip

    def _rouse(self) -> None:
        self.roused += 1

    def connect(self, *, in_flight: int = 0, lease: float = 60.0, max_lease: float = 900.0) -> Any:
        line = Line(Limits(lease, max_lease, 2500), in_flight)
        self.flow.accounts[line] = SimpleNamespace(share=self.flow.connect(line))  # type: ignore[index, assignment, arg-type]
        return line


class Line:
    """A connection; it notes what it is granted."""

    def __init__(self, limits: Limits, in_flight: int) -> None:
        self.limits, self.exposed = limits, in_flight
        self.in_flight = dict.fromkeys(range(in_flight))
        self.granted = 0
        self.grants: list[int] = []

    def grant(self, number: int) -> None:
        self.granted = number
        self.grants.append(number)


def message(attempts: int = 1) -> Message:
    return Message(b"1", 0, attempts, b"", SimpleNamespace(node="a:1", topic="orders"))


@pytest.mark.parametrize(("batch", "working", "ahead"), [(0, 10, 0), (7, 70, 7)])
def test_a_batch_handler_works_on_whole_batches_and_fills_one_more(batch: int, working: int, ahead: int) -> None:
    credit = Case(batch=batch, concurrency=10).flow.credit
    assert (credit._concurrency, credit._ahead) == (working, ahead)


def test_how_long_messages_may_wait_is_as_the_shortest_of_its_connections_has_it() -> None:
    case = Case(timeout=60.0)
    case.flow.connections_changed()
    assert case.flow.credit._patience == math.inf
    assert (case.waits, case.roused) == ([], 1)
    case.connect(lease=60.0, max_lease=900.0)
    case.connect(lease=60.0, max_lease=200.0)
    case.flow.connections_changed()
    assert case.flow.credit._patience == 2
    assert case.waits == [70.0]


def test_where_the_handler_says_that_it_cannot_work_what_waits_is_for_others_and_no_more_is_granted() -> None:
    case = Case()
    line = case.connect()
    case.flow.heed(message(), FAILED)
    assert (case.put_off, line.grants) == ([], [])
    case.flow.heed(message(), DOWN)
    assert case.put_off == ["all"]
    assert line.granted == 0
    assert case.roused


def test_what_waits_too_long_is_put_off_and_no_more_is_granted_than_has_come() -> None:
    case = Case(concurrency=5, max_in_flight=5)
    line = case.connect(in_flight=2)
    late: Any = {message()}
    case.flow.overdue(late)
    assert case.put_off == [late]
    assert line.granted <= 2
    assert case.flow.valve.admits(5, 2) == 2


def test_a_pause_grants_nothing_and_a_drain_gives_back_what_waits_as_well() -> None:
    case = Case()
    line = case.connect()
    case.flow.grants.regrant_all()
    assert line.granted == 1
    case.flow.pause(True)
    assert (line.granted, case.flow.paused, case.flow.drained, case.put_off) == (0, True, False, [])
    case.flow.pause(False)
    assert (line.granted, case.flow.paused) == (1, False)
    case.flow.pause(True, drained=True)
    assert (line.granted, case.flow.drained, case.put_off) == (0, True, ["all"])


def test_numbers_are_changed_while_it_runs() -> None:
    case = Case(batch=3, concurrency=2, usable=1)
    case.connect(in_flight=4)
    roused = case.roused
    case.flow.resize(55)
    assert case.flow.max_in_flight == 55
    assert case.roused == roused + 1
    assert [account.share.in_flight for account in case.flow.accounts.values()] == [4]
    case.flow.work_at_once(5)
    assert case.flow.concurrency == 5
    assert case.flow.credit._concurrency == 15
    assert case.flow.credit._lacking == 12
    assert case.roused == roused + 2
    case.remote.usable = 9
    case.flow.tick(1.0)
    assert case.flow.credit._lacking == 0


def test_a_tick_tells_what_calls_have_settled_since_the_last() -> None:
    case, ticks = Case(), list[tuple[float, int, float]]()
    case.flow.grants.tick = lambda *of: ticks.append(of)  # type: ignore[method-assign]
    case.flow.roused(100.0)
    case.ledger.finished, case.ledger.requeued, case.ledger.lease_lost, case.ledger.lost = 10, 5, 3, 1
    case.waiting.unstarted.given_back = 4
    case.flow.tick(101.0)
    case.waiting.unstarted.given_back = 6  # said before the broker's word on them has come
    case.flow.tick(103.0)
    case.ledger.finished += 4
    case.flow.tick(104.5)
    assert ticks == [(101.0, 11, 1.0), (103.0, 0, 2.0), (104.5, 2, 1.5)]


def test_what_its_calls_have_ended_is_what_came_and_neither_is_in_flight_nor_left_otherwise() -> None:
    case = Case()
    case.connect(in_flight=2)
    case.connect(in_flight=1)
    case.ledger.received, case.ledger.lease_lost, case.ledger.lost = 20, 2, 1
    case.waiting.unstarted.given_back = 4
    assert case.flow.ended == 10


def test_it_rests_when_nothing_is_held_back_or_let_go_of() -> None:
    case = Case()
    line = case.connect()
    line.granted = 1
    parts: Any = [SimpleNamespace(at_rest=True), SimpleNamespace(at_rest=True)]
    case.flow.breaker, case.flow.credit = parts
    assert case.flow.at_rest
    for one in parts:
        one.at_rest = False
        assert not case.flow.at_rest
        one.at_rest = True
    line.granted = 2
    assert not case.flow.at_rest


# --- the breaker


class Held:
    """A breaker whose handler's clock and count of ended messages are set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, batches: bool = False) -> None:
        self.now, self.ended = 1_000.0, 0
        self.caps: list[int | None] = []
        monkeypatch.setattr(breakers, "clock", lambda: self.now)
        credit: Any = SimpleNamespace(cap=self.caps.append)
        self.breaker = Breaker("bill", credit, lambda: self.ended, batches=batches, longest=None)
        self._number = 0

    def fails(self, outcome: Any = FAILED, attempts: int = 1) -> bool:
        """Another message; whether a pause begins."""
        self._number += 1
        self.ended += 1
        one = Message(b"%d" % self._number, 0, attempts, b"", SimpleNamespace(node="a:1", topic="orders"))
        return self.breaker.pauses_after(one, outcome)


def test_a_pause_begins_when_most_fail_and_says_why(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    held = Held(monkeypatch)
    assert (held.breaker.pause, held.breaker.at_rest, held.breaker.pausing) == (None, True, False)
    assert [held.fails() for _ in range(FEWEST_FAILURES)] == [False] * (FEWEST_FAILURES - 1) + [True]
    assert held.caps == [0]
    assert held.breaker.pausing
    assert not held.breaker.at_rest
    assert held.breaker.pause is not None
    why, seconds = held.breaker.pause
    assert why == "most of its last messages failed"
    assert 0.5 <= seconds <= 1.0
    held.now += seconds
    assert not held.breaker.pausing
    assert held.breaker.pause == (why, 0.0)
    held.now += 1
    assert held.breaker.pause == (why, 0.0)
    assert [held.fails() for _ in range(VOTES)] == [False, True]
    assert held.breaker.pause[0] == "most messages that were tried after the pause failed"
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # the next ones are no news


def test_what_went_well_before_a_failure_is_counted_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    for _ in range(FEWEST_FAILURES * 2):
        held.ended += 2
        assert not held.fails()
    assert held.breaker.at_rest
    for _ in range(FEWEST_FAILURES * 10):
        if held.fails():
            return
    raise AssertionError("no pause begins when all fail")


def test_what_went_well_until_the_very_failure_is_counted_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tries that went well end a pause, though a third fails in the same moment."""
    held = Held(monkeypatch)
    held.fails(DOWN)
    held.now += 100
    held.ended += VOTES
    assert not held.fails()
    assert held.breaker.at_rest


def test_what_nobody_is_at_fault_for_went_well(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    for _ in range(100):
        assert not held.fails(Requeue(1.0))
        assert not held.fails(Dead())
    assert held.breaker.calls_well == 200


def test_where_the_handler_has_a_word_for_it_a_failure_without_is_its_messages_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held(monkeypatch)
    held.fails()
    assert held.fails(DOWN)
    assert held.breaker.pause is not None
    assert held.breaker.pause[0] == "the handler raised Backoff"
    held.now += 100
    held.breaker.look(held.now)
    assert held.caps[-1] == 1
    assert [held.fails(DOWN), held.fails(DOWN)] == [False, True]
    held.now += 100
    assert not any(held.fails() for _ in range(VOTES))
    held.breaker.look(held.now)
    assert "works again, after 2 pauses" in caplog.text
    assert held.caps[-1] is None
    assert held.breaker.at_rest


def test_tries_that_go_well_are_counted_at_each_look(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    held = Held(monkeypatch)
    assert held.fails(DOWN)
    held.breaker.look(held.now)
    assert held.caps[-1] == 0
    held.now += 100
    for left in range(VOTES, 0, -1):
        held.breaker.look(held.now)
        assert held.caps[-1] == 1, left
        held.ended += 1
    held.breaker.look(held.now)
    assert held.caps[-1] is None
    assert "works again, after 1 pause" in caplog.text
    assert "pauses" not in caplog.text


def test_of_batches_calls_are_counted_and_not_their_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, batches=True)
    held.ended = 10_000
    assert any(held.fails() for _ in range(FEWEST_FAILURES))
    held = Held(monkeypatch, batches=True)
    for _ in range(10 * FEWEST_FAILURES):
        held.breaker.calls_well += 2
        assert not held.fails()


def test_what_was_tried_before_is_no_news_where_others_go_well(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    held.ended = 5
    assert not any(held.fails(attempts=2) for _ in range(100))
    assert any(held.fails(attempts=1) for _ in range(100))


def test_the_longest_pause_of_a_handler_is_its_breakers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "PAUSE_BASE", 50.0)
    credit: Any = SimpleNamespace(cap=lambda _: None)
    breaker = Breaker("bill", credit, lambda: 0, batches=False, longest=2.0)
    breaker.pauses_after(message(), DOWN)
    assert breaker.pause is not None
    assert breaker.pause[1] <= 2.0


def test_a_call_is_started_when_any_slot_is_busy() -> None:
    for busy in (), ("one",), ("", "one"):
        slots: Any = SimpleNamespace(busy=lambda busy=busy: iter(busy))
        flow: Any = SimpleNamespace(accounts=[])
        in_flight = InFlight(make_spec(bill), flow, SimpleNamespace(queue=deque()), slots, None)  # type: ignore[arg-type]
        assert in_flight.started is bool(busy)
        assert not in_flight
