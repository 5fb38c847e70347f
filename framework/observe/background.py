"""A bounded queue that a native thread empties: for what may block, such as writing a log line, so that a hub never waits for
it.

It knows neither lines nor records: its maker says how an item is handled.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from gevent import monkey

from framework.forked import Step, forget_in_child

Item = TypeVar("Item")

SIZE = 10_000
TOGETHER = 256
"""Items that are joined, at most."""
_TOGETHER_WEIGHT = 1024 * 1024
"""And no more of them than weigh so much."""
_LINGER_SECONDS = 1.0
"""How long the thread waits for more before it ends: the next item starts another one."""

# Patched, they would be a greenlet's.
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_new_rlock = monkey.get_original("_thread", "RLock")
_start_new_thread = monkey.get_original("_thread", "start_new_thread")


class Background(Generic[Item]):
    """``put`` from anywhere, a callback of the hub included; ``handle`` is called in a thread of its own, in the puts' order."""

    def __init__(
        self,
        handle: Callable[[Item], object],
        lost: Callable[[int], Item],
        *,
        join: Callable[[list[Item]], Item] | None = None,
        size: int = SIZE,
        room: float = math.inf,
        weigh: Callable[[Item], int] = lambda item: 0,
    ) -> None:
        """What ``handle`` raises is lost with its item. ``lost`` makes the item that says how many were dropped, ``join`` one of
        many that wait: where ``handle`` lets go of the GIL it gets that back once in 5 ms only, from a thread that computes.
        ``size`` items may wait, which weigh no more than ``room``; one alone may weigh more."""
        self._handle = handle
        self._lost = lost
        self._join = join
        self._size = size
        self._room = room
        self._weigh = weigh
        self._dropped = 0
        """Since it was full. Until half of it is empty nothing is taken, so that they are said in one place, and once."""
        self._begin()
        forget_in_child(self, Step.WRITING)

    def _begin(self) -> None:
        self._queue: deque[Item | _Flush] = deque()
        self._weight_in = self._weight_out = 0
        """Of all that came and of all that was taken out: each is counted by one side alone, so neither waits for the other."""
        self._lock = _new_rlock()  # reentrant: a finalizer that logs may run in the middle of a put
        self._wake = _allocate_lock()
        self._wake.acquire()
        self._running = False

    def forget(self) -> None:
        """In a forked child: the thread stayed in the parent, which handles what was queued."""
        self._dropped = 0
        self._begin()

    def put(self, item: Item) -> None:
        """Never blocks: an item that comes while the queue is full is dropped and counted."""
        with self._lock:
            weight = self._weigh(item)
            if self._dropped or len(self._queue) >= self._size or (self._queue and self._weight + weight > self._room):
                self._dropped += 1
                return
            self._weight_in += weight
            self._append(item)

    @property
    def drops(self) -> bool:
        """Whether some were dropped that are not said yet."""
        return self._dropped > 0

    @property
    def _weight(self) -> int:
        """Of what waits."""
        return self._weight_in - self._weight_out

    def flush(self, seconds: float) -> bool:
        """Wait until all that was put is handled; False: it took longer. It blocks the thread with its hub: for an exit."""
        mark = _Flush()
        with self._lock:
            self._say_lost()
            self._append(mark)
        return bool(mark.done.acquire(timeout=seconds))

    def _append(self, item: Item | _Flush) -> None:
        self._queue.append(item)
        if not self._running:
            with suppress(RuntimeError):  # no more threads are to be had: the next put tries again
                _start_new_thread(self._run, ())
                self._running = True
        with suppress(RuntimeError):  # rung already
            self._wake.release()

    def _say_lost(self) -> None:
        """In the place of those that were dropped."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                said = self._lost(dropped)
                self._weight_in += self._weigh(said)
                self._queue.append(said)

    # -- in the thread

    def _run(self) -> None:
        while self._more():
            while self._queue:
                item = self._queue.popleft()
                if not isinstance(item, _Flush):
                    self._weight_out += self._weigh(item)
                    if self._join is not None:
                        item = self._joined(item, self._join)
                if self._dropped and len(self._queue) <= self._size // 2 and self._weight <= self._room / 2:
                    self._say_lost()
                if isinstance(item, _Flush):
                    item.done.release()
                    continue
                with suppress(Exception):
                    self._handle(item)

    def _joined(self, first: Item, join: Callable[[list[Item]], Item]) -> Item:
        items, weight = [first], self._weigh(first)
        while self._queue and len(items) < TOGETHER and weight < _TOGETHER_WEIGHT:
            following = self._queue[0]
            if isinstance(following, _Flush):
                break
            self._queue.popleft()
            items.append(following)
            weight += self._weigh(following)
        self._weight_out += weight - self._weigh(first)
        return join(items)

    def _more(self) -> bool:
        """Wait for more; False: there is none, and this thread ends."""
        if self._wake.acquire(timeout=_LINGER_SECONDS):
            return True
        with self._lock:
            self._running = bool(self._queue)
            return self._running


class _Flush:
    """Stands in the queue behind what shall be handled; its lock is released when it comes out."""

    def __init__(self) -> None:
        self.done: Any = _allocate_lock()
        self.done.acquire()
