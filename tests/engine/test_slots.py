"""The pump and the slots under stress: nothing waits that could run, nothing runs that should wait."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from gevent.event import Event
from greenlet import GreenletExit

from framework.engine.slots import Slot, Slots
from framework.engine.turns import SLICE, Turns
from framework.errors import HandlerTimeout


class Jobs:
    """A queue of callables worked on by slots, as the consumer does it, with a census of who runs."""

    def __init__(self, size: int) -> None:
        self.hub = gevent.get_hub()
        self.turns = Turns(self.hub)
        self.turns.start()
        self.queue: deque[Callable[[], Any]] = deque()
        self.slots = Slots(self.hub, self.turns, size, self.queue, self.work)
        self.running = self.most = self.done = self.limited = 0

    def work(self, slot: Slot) -> None:
        while self.queue:
            slot.job, slot.started = self.queue.popleft(), time.monotonic()
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                slot.job()
            except HandlerTimeout:
                self.limited += 1
            except KeyError:  # a handler that raises, which the chain takes
                pass
            finally:
                self.running -= 1
                self.done += 1
                slot.job = None
            now = time.monotonic()
            if now - self.turns.stamp > SLICE and now > self.slots.share_ends:
                break

    def put(self, *jobs: Callable[[], Any]) -> None:
        """As a connection does it: from a callback on the hub."""
        self.on_hub(lambda: (self.queue.extend(jobs), self.slots.pump()))

    def on_hub(self, call: Callable[[], Any]) -> None:
        timer = self.hub.loop.timer(0)
        timer.start(call)
        while timer.active:
            gevent.sleep(0)
        gevent.sleep(0)

    def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition did not become true in time"
            gevent.sleep(0.001)

    def close(self) -> None:
        self.on_hub(self.slots.close)
        self.turns.stop()


@pytest.fixture
def jobs() -> Iterator[Callable[[int], Jobs]]:
    made: list[Jobs] = []

    def make(size: int) -> Jobs:
        made.append(Jobs(size))
        return made[-1]

    yield make
    for one in made:
        one.close()


def burn(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@pytest.mark.parametrize("size", [1, 2, 7, 50, 300])
@pytest.mark.parametrize("seed", range(4))
def test_no_wake_up_is_lost_and_concurrency_is_never_exceeded(jobs, size: int, seed: int) -> None:
    rng = random.Random(seed * 1000 + size)
    one = jobs(size)

    def burn_then_block() -> None:
        burn(1.2 * SLICE)
        gevent.sleep(rng.random() * 0.003)

    def fail() -> None:
        gevent.sleep(rng.random() * 0.001)
        raise KeyError

    kinds: list[Callable[[], Any]] = [
        lambda: None, lambda: gevent.sleep(0), lambda: gevent.sleep(rng.random() * 0.003), lambda: burn(rng.random() * 0.001),
        lambda: gevent.spawn(gevent.sleep, 0).join(), fail, burn_then_block,
    ]  # fmt: skip
    quiet: list[bool] = []

    def never_idle_beside_work() -> None:
        quiet.append(bool(one.queue) and bool(one.slots._idle) and not one.slots._kick.active)

    watcher = one.hub.loop.prepare(priority=one.hub.loop.MINPRI)
    watcher.start(never_idle_beside_work)
    total = 0
    for _ in range(60):
        batch = rng.choices(kinds, weights=[40, 4, 4, 4, 2, 4, 1], k=rng.randint(1, 40))
        total += len(batch)
        one.put(*batch)
    one.until(lambda: one.done == total)
    watcher.stop()
    assert not any(quiet)
    assert one.most <= size


def test_a_slot_that_blocks_wakes_the_next_and_only_then(jobs) -> None:
    one = jobs(10)
    gate = Event()
    one.put(*[gate.wait] * 3, *[lambda: None] * 100)
    one.until(lambda: one.done == 100)
    assert one.running == 3
    assert sum(bool(slot.greenlet) for slot in one.slots._all) == 4
    gate.set()
    one.until(lambda: one.done == 103)


def test_others_get_their_turn_while_handlers_burn_cpu(jobs) -> None:
    one = jobs(4)
    waits: list[float] = []

    def neighbour() -> None:
        while one.done < 600:
            before = time.perf_counter()
            gevent.sleep(0)
            waits.append(time.perf_counter() - before)

    one.put(*[lambda: burn(0.0005)] * 600)
    gevent.spawn(neighbour)
    one.until(lambda: one.done == 600)
    waits.sort()
    assert waits[len(waits) * 9 // 10] < 4 * SLICE


def test_a_handler_that_burns_cpu_leaves_another_its_share_of_every_turn(jobs) -> None:
    greedy, other = jobs(1), jobs(1)
    greedy.put(*[lambda: burn(0.001)] * 3000)
    other.put(*[lambda: burn(0.0002)] * 200)
    other.until(lambda: other.done == 200)
    assert greedy.done < 600  # one job of the other for each turn of the greedy one would make it 1,000


def test_a_failing_slot_is_logged_and_goes_on_with_the_next_job(jobs, caplog) -> None:
    one = jobs(1)

    def fail() -> None:
        raise RuntimeError("our own fault")

    one.put(fail, lambda: None)
    one.until(lambda: one.done == 2)
    gevent.sleep(0.01)  # a hub that was told would have raised it here
    assert "RuntimeError: our own fault" in caplog.text


@pytest.mark.parametrize("late", [lambda slot: slot.greenlet.throw(ValueError("late")), lambda slot: slot.greenlet.switch()])
def test_what_reaches_an_idle_slot_too_late_costs_no_other_job(jobs, late) -> None:
    one = jobs(2)
    one.put(lambda: None, lambda: gevent.sleep(0.001), lambda: gevent.sleep(0.001))
    one.until(lambda: one.done == 3)
    for slot in one.slots._all:
        one.on_hub(lambda slot=slot: late(slot))
    assert sorted(map(id, one.slots._idle)) == sorted(map(id, one.slots._all))
    ended = []
    one.put(*[lambda: (gevent.sleep(0.001), ended.append(1))] * 20)
    one.until(lambda: one.done == 23)
    assert (len(ended), one.most, one.limited) == (20, 2, 0)


def test_an_interrupt_is_for_the_process(jobs) -> None:
    one = jobs(1)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # the hub raises it in the main greenlet
        one.put(interrupt)
        one.until(lambda: one.done == 2)
    one.put(lambda: None)
    one.until(lambda: one.done == 2)


def test_a_dead_slot_is_replaced(jobs) -> None:
    one = jobs(2)
    gate = Event()
    one.put(gate.wait, gate.wait)
    gate.set()
    one.until(lambda: one.done == 2)
    victim = one.slots._all[0].greenlet
    one.on_hub(lambda: victim.throw(GreenletExit))
    assert victim.dead
    gate.clear()
    one.put(gate.wait, gate.wait)
    one.until(lambda: one.running == 2)
    gate.set()
    one.until(lambda: one.done == 4)


def test_the_time_limit_is_thrown_into_the_handler_that_is_over_it_and_no_other(jobs) -> None:
    one = jobs(2)
    gate = Event()
    one.put(lambda: gevent.sleep(30))
    one.until(lambda: one.running == 1)
    gevent.sleep(0.05)
    before_the_other = time.monotonic()  # however late the look at it comes
    one.put(gate.wait)
    one.on_hub(lambda: one.slots.enforce(0.05, before_the_other))
    assert (one.limited, one.running) == (1, 1)
    gate.set()
    one.until(lambda: one.done == 2)
    assert one.limited == 1


def test_a_handler_that_swallows_its_time_limit_is_not_told_at_every_look(jobs) -> None:
    one = jobs(1)
    told: list[str] = []

    def stubborn() -> None:
        while not gate.is_set():
            try:
                gate.wait()
            except HandlerTimeout as error:
                told.append(str(error))

    gate = Event()
    one.put(stubborn)
    one.until(lambda: one.running == 1)
    for _ in range(5):
        one.on_hub(lambda: one.slots.enforce(0.0, time.monotonic()))
    assert told == ["it has run longer than its timeout of 0 s"]
    gate.set()
    one.until(lambda: one.done == 1)


def test_closing_ends_idle_slots(jobs) -> None:
    one = jobs(3)
    gate = Event()
    one.put(*[gate.wait] * 3)
    gate.set()
    one.until(lambda: one.done == 3)
    greenlets = [slot.greenlet for slot in one.slots._all]
    one.on_hub(one.slots.close)
    assert all(each.dead for each in greenlets)
