"""Native threads that export: no hub waits for a collector, and none encodes what goes there."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep

import gevent
from gevent import monkey

# Patched, they would be a greenlet's.
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_start_new_thread = monkey.get_original("_thread", "start_new_thread")
_LOOK = 0.01


class Regular:
    """Calls ``work`` every ``seconds`` in a thread of its own, and after ``soon`` at once. What it raises is lost."""

    def __init__(self, work: Callable[[], object], seconds: float) -> None:
        self._work = work
        self._seconds = seconds
        self._pid = 0
        self._begin()

    def _begin(self) -> None:
        self._wake = _allocate_lock()
        self._wake.acquire()
        self._rounds = self._begun = 0

    def begin(self) -> None:
        """Again in a forked child; where it has begun, nothing changes."""
        if self._pid != os.getpid():
            self._begin()
            self._pid = os.getpid()
            _start_new_thread(self._run, ())

    def soon(self) -> None:
        with suppress(RuntimeError):  # rung already
            self._wake.release()

    def flush(self, until: float) -> bool:
        """Wait for a whole round, no longer than until this monotonic time; False: it took longer. On a hub others go on."""
        if self._pid != os.getpid():
            return True
        wanted = self._begun + 1
        self.soon()
        while self._rounds < wanted and monotonic() < until:
            sleep(_LOOK)
        return self._rounds >= wanted

    def _run(self) -> None:
        try:
            while True:
                self._wake.acquire(timeout=self._seconds)
                self._begun += 1
                with suppress(Exception):
                    self._work()
                self._rounds = self._begun
        finally:
            hub = gevent.hub._get_hub()  # made by what patched sockets are used here
            if hub is not None:
                hub.destroy(destroy_loop=True)
