"""A bounded queue that a native thread empties: for what may block, such as writing a log line, so that a hub never waits for
it.

It knows neither lines nor records: its maker says how an item is handled.
"""

from __future__ import annotations

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
    ) -> None:
        """What ``handle`` raises is lost with its item. ``lost`` makes the item that says how many were dropped, ``join`` one of
        many that wait: where ``handle`` lets go of the GIL it gets that back once in 5 ms only, from a thread that computes."""
        self._handle = handle
        self._lost = lost
        self._join = join
        self._size = size
        self._dropped = 0
        """Since it was full. Until half of it is empty nothing is taken, so that they are said in one place, and once."""
        self._begin()
        forget_in_child(self, Step.WRITING)

    def _begin(self) -> None:
        self._queue: deque[Item | _Flush] = deque()
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
            if self._dropped or len(self._queue) >= self._size:
                self._dropped += 1
                return
            self._append(item)

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
                self._queue.append(self._lost(dropped))

    # -- in the thread

    def _run(self) -> None:
        while self._more():
            while self._queue:
                item = self._queue.popleft()
                if self._join is not None and not isinstance(item, _Flush):
                    item = self._joined(item, self._join)
                if self._dropped and len(self._queue) <= self._size // 2:
                    self._say_lost()
                if isinstance(item, _Flush):
                    item.done.release()
                    continue
                with suppress(Exception):
                    self._handle(item)

    def _joined(self, first: Item, join: Callable[[list[Item]], Item]) -> Item:
        items = [first]
        while self._queue and len(items) < TOGETHER and not isinstance(self._queue[0], _Flush):
            items.append(self._queue.popleft())  # type: ignore[arg-type]
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
