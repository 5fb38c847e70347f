"""Locks that hold between greenlets and between native threads alike, for a process that gevent has patched.

gevent's own are for the greenlets of one thread: contended between native threads they can stand still for ever (a release is
passed on by a hub, and the hub of a thread that computes does not turn). Every log line takes such a lock, so no handler could
run in a thread. ``install`` puts these in their place. Nothing here is about handlers or brokers.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from time import monotonic
from types import TracebackType
from typing import Any

import gevent
from gevent import monkey
from gevent.hub import Waiter
from greenlet import getcurrent  # type: ignore[import-untyped]

_allocate = monkey.get_original("_thread", "allocate_lock")
_FOR_EVER = -1.0
HUB_PATIENCE = 1.0
"""Seconds that the hub itself waits for another thread. A greenlet of its own thread could not let go meanwhile."""


class Lock:
    """As ``threading.Lock``. A native lock: a greenlet that waits for it lets its hub turn, and is woken by the release."""

    __slots__ = ("__weakref__", "_native", "_waiting")

    def __init__(self) -> None:
        self._native = _allocate()
        self._waiting: deque[Any] = deque()
        """The wakers (async watchers) of the greenlets that wait, the oldest first."""

    def acquire(self, blocking: bool = True, timeout: float = _FOR_EVER) -> bool:
        if self._native.acquire(False):
            return True
        if not blocking:
            if timeout != _FOR_EVER:
                raise ValueError("can't specify a timeout for a non-blocking call")
            return False
        if timeout < 0 and timeout != _FOR_EVER:
            raise ValueError("timeout value must be a non-negative number")
        hub = gevent.hub._get_hub()
        if hub is None:  # a thread without greenlets: it may simply block
            return bool(self._native.acquire(True, timeout))
        if getcurrent() is hub:
            return self._acquire_in_hub(timeout)
        return self._acquire_beside(hub, None if timeout == _FOR_EVER else monotonic() + timeout)

    def _acquire_in_hub(self, timeout: float) -> bool:
        if self._native.acquire(True, HUB_PATIENCE if timeout == _FOR_EVER else min(timeout, HUB_PATIENCE)):
            return True
        if timeout == _FOR_EVER:
            raise RuntimeError("a callback of the hub waits for a lock that a greenlet of its thread may hold: it would for ever")
        return False

    def _acquire_beside(self, hub: Any, deadline: float | None) -> bool:
        while True:
            waker = hub.loop.async_()
            self._waiting.append(waker)
            if self._native.acquire(False):  # released before the release could see this waiter
                self._forget(waker)
                return True
            self._await(hub, waker, deadline)
            if self._native.acquire(False):
                return True
            if deadline is not None and monotonic() >= deadline:
                return False

    def _await(self, hub: Any, waker: Any, deadline: float | None) -> None:
        """Until it is woken, or the deadline."""
        waiter: Waiter[None] = Waiter(hub)
        limit = None if deadline is None else hub.loop.timer(max(0.0, deadline - monotonic()))
        waker.start(waiter.switch, None)
        try:
            if limit is not None:
                limit.start(waiter.switch, None)
            waiter.get()
        except BaseException:
            self._forget(waker)
            raise
        finally:
            waker.stop()  # not closed: a release in another thread may be about to use it
            if limit is not None:
                limit.stop()
                limit.close()
        if waker in self._waiting:  # it was the deadline
            self._forget(waker)

    def _forget(self, waker: Any) -> None:
        """Wait no more. A release that has used this waker is for the next one."""
        try:
            self._waiting.remove(waker)
        except ValueError:
            self._ring()

    def _ring(self) -> None:
        while self._waiting:
            try:
                self._waiting.popleft().send()
            except IndexError:  # another release was quicker
                return
            except ValueError:  # the loop of a thread that has ended
                continue
            return

    def release(self) -> None:
        self._native.release()
        if self._waiting:
            self._ring()

    def locked(self) -> bool:
        return bool(self._native.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._native = _allocate()
        self._waiting.clear()

    acquire_lock, release_lock, locked_lock = acquire, release, locked


def _installed() -> bool:
    current: object = threading.Lock
    return current is Lock


def install() -> None:
    """Make ``threading``'s locks, and all that is built on them, of this kind from now on; logging's as well. Idempotent."""
    if _installed():
        return
    import _thread  # noqa: PLC0415

    for module, name in ((_thread, "allocate_lock"), (_thread, "allocate"), (threading, "_allocate_lock"), (threading, "Lock")):
        setattr(module, name, Lock)
    threading.RLock = threading._PyRLock  # type: ignore[attr-defined]
    logging._lock = threading.RLock()  # type: ignore[attr-defined]
    for reference in list(logging._handlerList):  # type: ignore[attr-defined]
        handler = reference()
        if handler is not None:
            handler.createLock()
