"""A queue that a native thread empties: whoever puts never waits, nothing is out of order, and what is dropped is counted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from framework.observe import background
from framework.observe.background import Background


def soon(done: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.005)
    return done()


class Stuck:
    """Handles nothing until it is let go."""

    def __init__(self) -> None:
        self.handled: list[str] = []
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, item: str) -> None:
        self.entered.set()
        self.go.wait(30)
        self.handled.append(item)


def lost(count: int) -> str:
    return f"{count} lost"


def test_all_is_handled_in_its_order_and_elsewhere() -> None:
    threads, handled = set[int](), list[int]()

    def handle(item: int) -> None:
        threads.add(threading.get_ident())
        handled.append(item)

    queue = Background(handle, lambda count: -count)
    for item in range(5000):
        queue.put(item)
    assert queue.flush(10)
    assert handled == list(range(5000))
    assert threading.get_ident() not in threads


def test_what_does_not_fit_is_counted_and_said_in_its_place() -> None:
    stuck = Stuck()
    queue = Background(stuck, lost, size=4)
    queue.put("first")
    assert stuck.entered.wait(10)
    for item in range(10):
        queue.put(f"{item}")
    assert not queue.flush(0.01), "it said that all was handled while the thread stood still"
    stuck.go.set()
    assert queue.flush(10)
    queue.put("later")
    assert queue.flush(10)
    assert stuck.handled == ["first", "0", "1", "2", "3", "6 lost", "later"]


def test_while_it_overflows_steadily_not_every_other_item_is_a_count() -> None:
    stuck = Stuck()
    queue = Background(stuck, lost, size=100)
    for item in range(300):
        queue.put(f"{item}")
    stuck.go.set()
    for item in range(300):
        queue.put(f"{item}")
    assert queue.flush(10)
    counts = [item for item in stuck.handled if item.endswith("lost")]
    assert 1 <= len(counts) <= 6
    assert len(stuck.handled) - len(counts) + sum(int(item.split()[0]) for item in counts) == 600


def test_an_item_that_cannot_be_handled_is_not_the_end() -> None:
    handled: list[int] = []

    def handle(item: int) -> None:
        handled.append(10 // item)

    queue = Background(handle, lambda count: count)
    for item in (1, 0, 2):
        queue.put(item)
    assert queue.flush(10)
    assert handled == [10, 5]


def test_the_hub_turns_while_the_thread_stands_still() -> None:
    stuck = Stuck()
    queue = Background(stuck, lost)
    queue.put("first")
    assert stuck.entered.wait(10)
    ticks = []
    gevent.spawn(lambda: [(gevent.sleep(0), ticks.append(1)) for _ in range(10)])
    for item in range(100):
        queue.put(f"{item}")
    gevent.sleep(0.1)
    stuck.go.set()
    assert queue.flush(10)
    assert len(ticks) == 10


def test_an_idle_one_has_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_LINGER_SECONDS", 0.01)
    handled: list[int] = []
    queue = Background(handled.append, lambda count: count)
    for item in range(3):
        queue.put(item)
        assert soon(lambda: not queue._running), "its thread did not end"
        assert handled == list(range(item + 1))


def fork_and_put(queue: Background[str], stuck: Stuck) -> None:
    """A child is forked, puts something, and ends well once that is handled."""
    pid = os.fork()
    if pid == 0:
        stuck.go.set()  # this one's own
        queue.put("child")
        os._exit(0 if queue.flush(10) else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_child_that_was_forked_has_a_queue_of_its_own() -> None:
    reading, writing = os.pipe()
    stuck = Stuck()
    queue = Background(lambda item: (stuck(item), os.write(writing, item.encode())), lost)
    queue.put("parent")
    assert stuck.entered.wait(10)
    fork_and_put(queue, stuck)
    assert os.read(reading, 100) == b"child"
    stuck.go.set()
    assert queue.flush(10)
    assert os.read(reading, 100) == b"parent"


def test_what_waits_can_be_handled_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "TOGETHER", 4)
    stuck = Stuck()
    queue = Background(stuck, lost, join="+".join, size=10)
    queue.put("first")
    assert stuck.entered.wait(10)
    for item in range(13):
        queue.put(f"{item}")
    stuck.go.set()
    assert queue.flush(10)
    assert stuck.handled == ["first", "0+1+2+3", "4+5+6+7", "8+9+3 lost"]


def test_what_waits_has_no_more_weight_than_there_is_room_for() -> None:
    stuck = Stuck()
    queue = Background(stuck, lost, room=10, weigh=len)
    queue.put("first")
    assert stuck.entered.wait(10)
    for _ in range(4):
        queue.put("four")
    stuck.go.set()
    assert queue.flush(10)
    assert stuck.handled == ["first", "four", "four", "2 lost"]
    queue.put("longer than all the room")
    assert queue.flush(10)
    assert stuck.handled[-1] == "longer than all the room"
    assert queue._weight == 0, "what says that some were lost has its weight, or there would be more room each time"


def test_nothing_is_taken_again_until_half_of_the_room_is_empty() -> None:
    entered, go, handled = threading.Semaphore(0), threading.Semaphore(0), []

    def handle(item: str) -> None:
        entered.release()
        assert go.acquire(timeout=20)
        handled.append(item)

    queue = Background(handle, lost, room=10, weigh=len)
    for item in ("first", "two", "two", "two", "dropped"):
        queue.put(item)
        if item == "first":
            assert entered.acquire(timeout=20)
    go.release()
    assert entered.acquire(timeout=20)  # the first of three is taken out, and what waits weighs 6 of 10
    queue.put("dropped")
    for _ in range(5):
        go.release()
    assert queue.flush(20)
    assert handled == ["first", "two", "two", "two", "2 lost"]


@pytest.mark.parametrize("limits", [{"size": 4}, {"room": 8.0, "weigh": lambda _: 2}])
def test_it_is_taken_again_once_half_of_it_is_empty_and_not_before(limits: dict[str, Any]) -> None:
    entered, go, handled = threading.Semaphore(0), threading.Semaphore(0), []

    def handle(item: str) -> None:
        entered.release()
        assert go.acquire(timeout=20)
        handled.append(item)

    queue = Background(handle, lost, **limits)
    queue.put("first")
    assert entered.acquire(timeout=20)
    for item in ("1", "2", "3", "4", "dropped"):
        queue.put(item)
    for next_one in ("dropped", "taken"):  # three of four wait, and two
        go.release()
        assert entered.acquire(timeout=20)
        queue.put(next_one)
    for _ in range(6):
        go.release()
    assert queue.flush(20)
    assert handled == ["first", "1", "2", "3", "4", "2 lost", "taken"]


def test_no_more_is_joined_than_weighs_a_megabyte() -> None:
    stuck = Stuck()
    queue = Background(stuck, lost, join="".join, weigh=len)
    queue.put("first")
    assert stuck.entered.wait(10)
    for _ in range(5):
        queue.put("x" * (512 << 10))
    stuck.go.set()
    assert queue.flush(10)
    assert list(map(len, stuck.handled)) == [5, 1 << 20, 1 << 20, 512 << 10]
    assert queue._weight == 0, "each of those that are joined is taken out"


@pytest.mark.parametrize("threads_left", [0, 1])
def test_it_has_one_thread_and_where_none_is_to_be_had_the_next_put_tries_again(
    threads_left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Callable[[], None]] = []

    def start(work: Callable[[], None], _: tuple[()]) -> None:
        if len(started) == tries.pop(0):
            raise RuntimeError("can't start new thread")
        started.append(work)

    tries = [0, -1] if not threads_left else [-1]
    monkeypatch.setattr(background, "_start_new_thread", start)
    queue = Background[str](lambda item: None, lost)
    for item in ("1", "2", "3"):
        queue.put(item)
    assert (len(started), tries) == (1, [])
    assert list(queue._queue) == ["1", "2", "3"]


def test_one_that_was_dropped_is_one() -> None:
    stuck = Stuck()
    queue = Background(stuck, lost, size=1)
    queue.put("first")
    assert stuck.entered.wait(10)
    queue.put("1")
    assert not queue.drops
    queue.put("dropped")
    assert queue.drops
    stuck.go.set()
    assert queue.flush(10)
    assert (queue.drops, stuck.handled) == (False, ["first", "1", "1 lost"])


def test_what_its_parent_has_dropped_is_nothing_to_a_child_that_was_forked() -> None:
    reading, writing = os.pipe()
    stuck = Stuck()
    queue = Background(lambda item: (stuck(item), os.write(writing, item.encode())), lost, size=1)
    for item in ("parent", "waits", "dropped"):
        queue.put(item)
        if item == "parent":
            assert stuck.entered.wait(10)
    fork_and_put(queue, stuck)
    assert os.read(reading, 100) == b"child"
    stuck.go.set()
    assert queue.flush(10)
