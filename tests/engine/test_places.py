"""Which processes of a handler take calls, with processes that are none. In milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.event import Event

from framework.engine import slots_process
from framework.engine.slot_process import SlotDied
from framework.engine.slots_process import STEADY, ProcessPlaces
from tests.engine.conftest import make_spec


class Child:
    """In the place of a process: it is ready at once, but for one that is ``slow``, and ends when it is told to."""

    all: list[Child] = []  # noqa: RUF012
    slow = False
    refusal = ""

    def __init__(self, _spec: Any, _hub: Any, _environ: Any, ended: Callable[[], None]) -> None:
        self.pid = len(self.all)
        self.alive, self.killed, self.job = True, False, None
        self.ready = Event()
        if not self.slow:
            self.ready.set()
        self.handled: list[Any] = []
        self.looked = 0
        self._ended = ended
        self.all.append(self)

    def handle(self, job: Any) -> None:
        self.job = job
        try:
            if callable(job):
                job(self)
            self.handled.append(job)
        finally:
            self.job = None

    def dismiss(self) -> None:
        self.killed = True
        self.end()

    kill = dismiss

    def end(self) -> None:
        self.alive = False
        self.ready.set()
        self._ended()

    def look(self) -> None:
        self.looked += 1

    def status(self) -> int | None:
        return None if self.alive else 0

    def how_it_ended(self) -> str:
        return "died"


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], ProcessPlaces]]:
    monkeypatch.setattr(Child, "all", [])
    monkeypatch.setattr(slots_process, "SlotProcess", Child)
    monkeypatch.setattr(slots_process.backoff, "reconnect_delay", lambda failures: 0.001 * failures)
    made: list[ProcessPlaces] = []

    def make(size: int) -> ProcessPlaces:
        made.append(ProcessPlaces(make_spec(print, concurrency=size), gevent.get_hub()))
        turn()
        return made[-1]

    yield make
    for one in made:
        on_hub(one.close)


def on_hub(call: Callable[..., None], *arguments: Any) -> None:
    gevent.get_hub().loop.run_callback(call, *arguments)
    turn()


def turn() -> None:
    for _ in range(4):
        gevent.sleep(0)


def alive() -> list[Child]:
    return [one for one in Child.all if one.alive]


def test_there_are_as_many_processes_as_slots_also_after_their_number_was_changed(places: Any) -> None:
    some = places(2)
    assert (len(alive()), some.usable) == (2, 2)
    some.resize(3)
    turn()
    assert (len(alive()), len(Child.all), some.usable) == (3, 3, 3)
    some.resize(1)
    turn()
    assert (len(alive()), some.usable) == (1, 1)
    some.resize(2)
    turn()
    assert (len(alive()), some.usable, len(some._keepers)) == (2, 2, 2)


def test_of_those_that_are_too_many_the_ones_that_still_start_go_first(places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    some, gate = places(2), Event()
    calls = [gevent.spawn(some.call, lambda _: gate.wait())]
    turn()
    monkeypatch.setattr(Child, "slow", True)
    some.resize(4)
    turn()
    assert (len(alive()), some.usable) == (4, 2)
    some.resize(1)
    turn()
    assert (alive(), some.usable) == ([Child.all[0]], 1)
    gate.set()
    gevent.joinall(calls, timeout=5)
    turn()
    assert (alive(), list(some._free), some.usable) == ([Child.all[0]], [Child.all[0]], 1)


def test_a_process_that_is_one_too_many_ends_after_its_call(places: Any) -> None:
    some, gate = places(2), Event()
    calls = [gevent.spawn(some.call, lambda _: gate.wait()) for _ in range(2)]
    turn()
    assert len(some.running()) == 2
    some.resize(1)
    turn()
    assert len(alive()) == 2
    gate.set()
    gevent.joinall(calls, timeout=5)
    turn()
    assert len(alive()) == 1
    assert list(some._free) == alive()


def test_one_that_dies_is_replaced_and_takes_no_call_any_more(places: Any) -> None:
    some = places(1)
    (first,) = alive()
    first.end()
    turn()
    gevent.sleep(0.01)
    turn()
    (second,) = alive()
    assert second is not first
    assert list(some._free) == [second]
    some.look(0.0)
    assert second.looked == 1
    assert some._children == {second}
    some.call("a job")
    assert second.handled == ["a job"]
    assert list(some._free) == [second]


def test_one_that_died_in_its_call_is_not_given_another(places: Any) -> None:
    some = places(1)

    def die(child: Child) -> None:
        child.alive = False
        raise SlotDied("killed")

    with pytest.raises(SlotDied):
        some.call(die)
    assert not some._free

    def be_killed(child: Child) -> None:
        child.killed = True

    other = places(1)
    other.call(be_killed)
    assert not other._free


def test_a_call_waits_for_a_free_process_and_ends_with_the_worker(places: Any) -> None:
    some, gate = places(1), Event()
    first = gevent.spawn(some.call, lambda _: gate.wait())
    turn()
    second = gevent.spawn(some.call, "second")
    waiting = gevent.spawn(some.wait)
    turn()
    assert not second.ready()
    gate.set()
    first.get(timeout=5)
    on_hub(some.look, 0.0)
    second.get(timeout=5)
    on_hub(some.look, 0.0)
    assert waiting.get(timeout=5) is True
    gate.clear()
    gevent.spawn(some.call, lambda _: gate.wait())
    turn()
    third, waiting = gevent.spawn(some.call, "third"), gevent.spawn(some.wait)
    turn()
    on_hub(some.close)
    assert waiting.get(timeout=5) is False
    assert isinstance(third.exception, SlotDied)
    assert some.ended
    assert some._children == set()
    gate.set()


def test_one_that_dies_again_and_again_is_replaced_less_often_unless_it_stood(
    places: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, failures = [1_000.0], list[int]()

    def delay(count: int) -> float:
        failures.append(count)
        return 0.0

    monkeypatch.setattr(slots_process.backoff, "reconnect_delay", delay)
    monkeypatch.setattr(slots_process, "time", SimpleNamespace(monotonic=lambda: now[0]))
    places(1)
    for stood in (0.0, STEADY, STEADY + 1, 0.0):
        now[0] += stood
        alive()[0].end()
        turn()
    assert failures == [1, 2, 1, 2]
    alive()[0].dismiss()  # as it is asked for
    turn()
    alive()[0].end()
    turn()
    assert failures == [1, 2, 1, 2, 1]


def test_a_process_that_cannot_be_started_is_tried_again(places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def fail(*_: object) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("no more processes")
        return Child(*_)  # type: ignore[arg-type]

    monkeypatch.setattr(slots_process, "SlotProcess", fail)
    some = places(1)
    gevent.sleep(0.02)
    turn()
    assert (len(tries), some.usable) == (3, 1)


def test_a_handler_that_no_process_can_import_is_refused(places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Child, "refusal", "cannot start: odd")
    some = places(1)
    assert "a slot process cannot start: odd" in str(some.refusal)
    assert not some._free
