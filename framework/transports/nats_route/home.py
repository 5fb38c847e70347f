"""Where a peer lives: on the hub of a worker, or on one of its own in a native thread, for whoever only publishes.

A publisher's thread may not turn its hub between two publishes, and a server gives up a peer that answers no PING.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

import gevent
from gevent import monkey
from gevent.hub import Waiter, get_hub

from framework.errors import BrokerUnreachable, FrameworkError
from framework.forked import Step, call_in_child
from framework.transports.nats_route.peer import Peer

T = TypeVar("T")

_start_thread = monkey.get_original("_thread", "start_new_thread")
_new_lock = monkey.get_original("_thread", "allocate_lock")
_thread_ident = monkey.get_original("_thread", "get_ident")
_SLACK = 1.0
"""Seconds beyond the timeout of what is asked of another thread."""


class Home:
    """A peer and its hub. ``make`` makes the peer, on that hub."""

    def __init__(self, make: Callable[[], Peer], *, own_thread: bool) -> None:
        self._make = make
        self._own_thread = own_thread
        self._closed = False
        if own_thread:
            self._begun = _new_lock()
            self._begun.acquire()
            self._ended = _new_lock()
            self._ended.acquire()
            _start_thread(self._live, ())
            self._begun.acquire()
            _threads.add(self)
        else:
            self._settle()

    def _settle(self) -> None:
        self._thread = _thread_ident()
        self._loop: Any = get_hub().loop
        self.peer = self._make()

    def _live(self) -> None:
        """The thread's life."""
        try:
            self._settle()
            self._waker: Any = self._loop.async_()
            waiter: Waiter[None] = Waiter()
            self._waker.start(waiter.switch, None)
            self._begun.release()
            waiter.get()
            self.peer.close()
            gevent.sleep(0)
            self._waker.close()
        finally:
            get_hub().destroy(destroy_loop=True)
            self._ended.release()

    @property
    def here(self) -> bool:
        """This is its thread."""
        return bool(_thread_ident() == self._thread)

    def call(self, work: Callable[[], T], timeout: float) -> T:
        """``work()`` in a greenlet of its hub; blocks the caller's, which may be of another thread. Raises what it raises.

        ``timeout``: seconds that ``work`` takes at most."""
        if self.here:
            return work()
        here = get_hub()
        waiter: Waiter[tuple[T | None, BaseException | None]] = Waiter(here)
        overdue = here.loop.timer(timeout + _SLACK)
        overdue.start(waiter.switch, (None, BrokerUnreachable("the thread of the cluster's peer does not answer")))

        def run() -> None:
            try:
                answer: tuple[T | None, BaseException | None] = work(), None
            except FrameworkError as error:
                answer = None, error
            here.loop.run_callback_threadsafe(waiter.switch, answer)

        try:
            self._loop.run_callback_threadsafe(gevent.spawn, run)
            value, error = cast("tuple[T, BaseException | None]", waiter.get())
        finally:
            overdue.stop()
            overdue.close()
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._own_thread:
            self._waker.send()
            self._ended.acquire(timeout=_SLACK)
        elif self.here:
            self.peer.close()
        else:
            self._loop.run_callback_threadsafe(self.peer.close)


_threads: weakref.WeakSet[Home] = weakref.WeakSet()


def _close_all() -> None:
    """A thread that runs a loop while the interpreter ends would end it by a signal."""
    for home in list(_threads):
        home.close()


atexit.register(_close_all)
call_in_child(Step.THREADS, _threads.clear)
