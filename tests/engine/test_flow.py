"""When a handler asks for messages and when for none, by its figures: pauses, jams, what waits in vain. How long calls took."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from framework.engine import times, ways
from framework.engine.controls import Controls
from framework.engine.dialler import _worth_a_line
from framework.engine.in_flight import InFlight
from framework.engine.slots import AGAIN, Slots
from framework.engine.tie import pause_after
from framework.engine.times import FAST, RUNNING, Times
from framework.engine.turns import SLICE
from framework.engine.unstarted import PUT_OFF
from framework.engine.valve import JAMMED, Valve
from framework.engine.waiting import Waiting
from framework.engine.ways import LOST, Way
from framework.errors import BadHandler
from framework.handler import HandlerSpec, make_spec
from framework.message import Batch, Message


def spec(**options: Any) -> HandlerSpec:
    def bill(message: Message) -> None: ...

    def bill_many(messages: Batch) -> None: ...

    return make_spec(bill_many if "batch" in options else bill, "orders", "billing", options)


def valve(*, full: bool = False, usable: int | None = None) -> tuple[Valve, Any, Any]:
    slots, remote = SimpleNamespace(full=full), None if usable is None else SimpleNamespace(usable=usable)
    return Valve(slots, remote), slots, remote  # type: ignore[arg-type]


def test_a_pause_or_a_jam_grants_nothing() -> None:
    one, _, _ = valve()
    assert one.admits(5, 2) == 5
    one.paused = True
    assert one.admits(5, 2) == 0
    assert valve(usable=0)[0].admits(5, 2) == 0
    assert valve(usable=1)[0].admits(5, 2) == 5


def test_after_something_waited_too_long_no_more_is_granted_than_has_come_until_a_slot_is_free() -> None:
    one, slots, _ = valve(full=True)
    one.overdue()
    assert [one.admits(5, 2), one.admits(1, 2)] == [2, 1]
    slots.full = False
    assert one.admits(5, 2) == 2  # of this one it was seen that a slot is free
    assert one.admits(5, 2) == 5


def test_it_is_jammed_when_no_remote_slot_was_usable_for_a_while() -> None:
    one, _, remote = valve(usable=1)
    assert not one.jammed(100.0)
    remote.usable = 0
    assert not one.jammed(101.0)
    assert one.admits(5, 2) == 0
    assert not one.jammed(101.0 + JAMMED)
    assert one.jammed(101.1 + JAMMED)
    remote.usable = 1
    assert not one.jammed(200.0)
    assert one.admits(5, 2) == 5
    assert not valve()[0].jammed(10**6)


def test_a_valve_rests_when_paused_or_when_each_connection_has_one_granted() -> None:
    one, _, _ = valve()
    lines: list[Any] = [SimpleNamespace(granted=1), SimpleNamespace(granted=2)]
    assert one.at_rest(lines[:1])
    assert not one.at_rest(lines)
    one.paused = True
    assert one.at_rest(lines)


# --- what waits


class GivenBack:
    """``Unstarted``, which takes all but what is ``left``."""

    def __init__(self) -> None:
        self.all: list[tuple[bytes, float]] = []
        self.gone: list[bytes] = []

    def give_back(self, messages: Any, delay: float) -> list[Message]:
        messages = list(messages)
        self.all += [(one.body, delay) for one in messages]
        return [one for one in messages if one.body == b"left"]

    def lost(self, messages: Any) -> None:
        self.gone += [one.body for one in messages]


def waiting(*bodies: bytes) -> tuple[Waiting, GivenBack, list[Message]]:
    lines = [object(), object()]
    messages = [Message(b"%d" % n, 0, 1, body, lines[n % 2]) for n, body in enumerate(bodies)]
    unstarted = GivenBack()
    return Waiting(deque(messages), unstarted), unstarted, messages  # type: ignore[arg-type]


def bodies(one: Waiting) -> list[bytes]:
    return [message.body for message in one.queue]  # type: ignore[union-attr]


def test_what_waits_can_be_taken_out_and_the_others_keep_their_order() -> None:
    one, _, messages = waiting(b"a", b"b", b"c", b"d")
    assert one.take({messages[1], messages[3]}.__contains__) == [messages[1], messages[3]]
    assert bodies(one) == [b"a", b"c"]
    assert one.take(lambda _: False) == []
    assert bodies(one) == [b"a", b"c"]
    assert one.take() == [messages[0], messages[2]]
    assert bodies(one) == []


def test_what_is_put_off_comes_again_in_a_while_but_for_what_no_broker_takes_back() -> None:
    one, unstarted, _ = waiting(b"a", b"left", b"c")
    one.put_off_all()
    assert unstarted.all == [(b"a", PUT_OFF), (b"left", PUT_OFF), (b"c", PUT_OFF)]
    assert bodies(one) == [b"left"]
    one, unstarted, messages = waiting(b"a", b"left", b"c")
    one.put_off_late([messages[0]])
    assert unstarted.all == [(b"a", PUT_OFF)]
    assert bodies(one) == [b"left", b"c"]


def test_what_is_lost_waits_no_longer_and_of_what_does_not_wait_nothing_is_noted() -> None:
    one, unstarted, messages = waiting(b"a", b"b", b"c", b"d")
    one.lost(messages[2])
    one.lost(messages[2])
    assert (bodies(one), unstarted.gone) == ([b"a", b"b", b"d"], [b"c"])
    one.closed(messages[1].connection)
    assert (bodies(one), unstarted.gone) == ([b"a"], [b"c", b"b", b"d"])


def look_at(jammed: bool, late: list[Message], queue: list[Message]) -> list[Any]:
    """What a look at what is in flight says."""
    said: list[Any] = []
    leases = SimpleNamespace(keep=lambda running, now: late)
    flow = SimpleNamespace(jammed=lambda now: jammed, accounts={"a": SimpleNamespace(leases=leases)}, overdue=said.append)
    slots = SimpleNamespace(enforce=lambda limit, now: said.append((limit, now)), busy=lambda: iter(()))
    remote = SimpleNamespace(look=said.append)
    waits = SimpleNamespace(queue=queue)
    InFlight(spec(timeout=7), flow, waits, slots, remote).look(3.0)  # type: ignore[arg-type]
    return said


def test_what_waits_too_long_and_in_a_jam_all_that_waits_is_for_others() -> None:
    _, _, (a, b) = waiting(b"a", b"b")
    assert look_at(jammed=False, late=[], queue=[a]) == [(7, 3.0), 3.0]
    assert look_at(jammed=False, late=[b], queue=[a]) == [(7, 3.0), 3.0, {b}]
    assert look_at(jammed=True, late=[], queue=[a]) == [(7, 3.0), 3.0, {a}]
    assert look_at(jammed=True, late=[], queue=[]) == [(7, 3.0), 3.0]


# --- slots


class Thrown:
    """A greenlet that notes what is thrown into it."""

    def __init__(self) -> None:
        self.count = 0

    def throw(self, _error: object) -> None:
        self.count += 1


def test_a_handler_is_told_once_that_its_time_is_over_and_again_when_it_took_no_notice() -> None:
    hub = SimpleNamespace(loop=SimpleNamespace(timer=lambda after: None))
    slots = Slots(hub, None, 1, [], lambda slot: None)  # type: ignore[arg-type]
    (slot,) = slots._all
    slot.greenlet, slot.job = Thrown(), "a job"
    for started, now, thrown in (
        (100.0, 110.0, 0),  # as long as it may
        (100.0, 110.1, 1),
        (100.0, 110.1 + AGAIN, 1),
        (100.0, 110.2 + AGAIN, 2),
        (111.0, 121.1, 3),  # another job, soon after
        (111.0, 121.2, 3),
    ):
        slot.started = started
        slots.enforce(10.0, now)
        assert slot.greenlet.count == thrown


@pytest.mark.parametrize(
    ("now", "own", "spent"), [(SLICE, 0.0, False), (1.1 * SLICE, 0.0, True), (1.1 * SLICE, 1.0, False), (SLICE / 2, 0.0, False)]
)
def test_a_turn_is_spent_when_its_time_and_the_handlers_own_are_over(now: float, own: float, spent: bool) -> None:
    hub = SimpleNamespace(loop=SimpleNamespace(timer=lambda after: None))
    slots = Slots(hub, SimpleNamespace(stamp=0.0), 1, [], lambda slot: None)  # type: ignore[arg-type]
    slots.own_time_ends = own
    assert slots._spent(now) is spent


# --- what an operator wants


class Told:
    """A consumer and its flow, which note what they are told."""

    def __init__(self, handler: HandlerSpec) -> None:
        self.spec, self.flow = handler, self
        self.paused = self.drained = False
        self.max_in_flight, self.concurrency = handler.max_in_flight, handler.concurrency
        self.said: list[Any] = []

    def pause(self, paused: bool, *, drained: bool) -> None:
        self.paused, self.drained = paused, drained
        self.said.append((paused, drained))

    def resize(self, number: int) -> None:
        self.said.append(number)


def test_only_what_changes_is_applied(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    handler = spec(max_in_flight=10, concurrency=2)
    controls, told = Controls([handler]), Told(handler)
    for ask, said in (
        (lambda: None, []),
        (lambda: controls.pause(handler.name), [(True, False)]),
        (lambda: controls.drain(handler.name), [(True, True)]),
        (lambda: controls.resume(handler.name), [(False, False)]),
        (lambda: controls.drain(handler.name), [(True, True)]),
        (lambda: controls.set_max_in_flight(handler.name, 7), [7]),
        (lambda: controls.set_concurrency(handler.name, 5), [5]),
    ):
        ask()
        told.said.clear()
        controls.apply(told)  # type: ignore[arg-type]
        assert told.said == said
        told.max_in_flight, told.concurrency = controls.max_in_flight[handler.name], controls.concurrency[handler.name]
        controls.apply(told)  # type: ignore[arg-type]
        assert told.said == said
    words = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert [one.partition(";")[0] for one in words] == [
        "paused", "drained", "goes on", "drained", "max_in_flight is now 7", "concurrency is now 5",
    ]  # fmt: skip


def test_numbers_are_taken_up_to_where_they_cannot_be() -> None:
    name = spec().name
    controls = Controls([spec(batch=10, max_in_flight=10)])  # it fills exactly
    with pytest.raises(BadHandler, match="can never fill"):
        Controls([replace(spec(batch=10, max_in_flight=10), max_in_flight=9)])  # as settings do it
    with pytest.raises(BadHandler, match="can never fill"):
        controls.set_max_in_flight(name, 9)
    controls.set_max_in_flight(name, 11)
    controls.set_concurrency(name, 11)
    with pytest.raises(BadHandler, match="can never be reached"):
        controls.set_concurrency(name, 12)
    with pytest.raises(BadHandler, match="to have none, pause it"):
        controls.set_concurrency(name, 0)
    assert (controls.max_in_flight, controls.concurrency) == ({name: 11}, {name: 11})


# --- how long calls took


def test_calls_and_waits_are_counted_in_their_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "clock", lambda: 50.0)
    monkeypatch.setattr(times, "_now", lambda: 1_010.0)
    counted = Times()
    assert (counted.busy, counted.waited, counted.ended_at, counted.started) == (0.0, 0.0, 50.0, 0.0)
    counted.slow(0.01)
    counted.slow(0.02)
    counted.slow(10_000.0)
    assert counted.slow_calls == [0, 1, 1] + [0] * (len(RUNNING) - 3) + [1]
    message = Message(b"1", 1_000_000_000_000, 1, b"", None)
    counted.ran(40.0, 41.0, 44.0, message)
    assert (counted.busy, counted.ended_at, round(counted.started, 6)) == (4.0, 44.0, 1_000.0)
    assert counted.waited == pytest.approx(7.0)  # from then to the start of the call
    counted.ran(44.0, 45.0, 45.0, [Message(b"2", 0, 2, b"", None), message])
    assert (counted.busy, round(counted.started, 6), sum(counted.waits)) == (5.0, 1_000.0, 1)  # it had been delivered before
    counted.ran(45.0, 45.0, 45.0, [Message(b"3", 1_015_000_000_000, 1, b"", None)])  # by another machine's clock
    assert counted.waited == pytest.approx(7.0)
    assert (counted.waits[0], sum(counted.waits)) == (1, 2)
    assert FAST == RUNNING[0]


# --- nodes


@pytest.mark.parametrize(
    ("failures", "worth"),
    [(0, False), (1, True), (2, True), (3, False), (5, True), (10, False), (20, True), (21, False), (40, True)],
)
def test_a_node_that_stays_away_is_said_now_and_then(failures: int, worth: bool) -> None:
    assert _worth_a_line(failures) is worth


def test_what_stands_for_seconds_is_missed_for_no_longer_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.engine.backoff.reconnect_delay", lambda failures: 3.0 * failures)
    assert [pause_after(stood, 1) for stood in (0.0, 1.0, 1.5, 2.9, 5.0)] == [3.0, 3.0, 1.5, 2.9, 3.0]


def test_a_node_is_dialled_often_for_a_minute_after_it_was_seen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    asked: list[tuple[int, bool]] = []

    def delay(failures: int, *, often: bool) -> float:
        asked.append((failures, often))
        return 1.0

    monkeypatch.setattr(ways, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(ways.backoff, "reconnect_delay", delay)
    way, error = Way(), OSError("down")
    way.missed(error)
    way.missed(error)  # one that was dialled together with the first
    assert asked == [(1, True)]
    now[0] += 1.0
    way.missed(error)
    now[0] = 1_000.0 + LOST
    way.missed(error)
    assert asked[1:] == [(2, True), (3, False)]
    way.seen()
    now[0] += LOST - 1
    way.missed(error)
    assert asked[3:] == [(4, True)]
    assert way.error is error
    way.reached()
    assert way.error is None
    now[0] += LOST - 1
    way.missed(error)
    assert asked[4:] == [(1, True)]
