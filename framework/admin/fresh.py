"""What takes long to make, made once for all who ask meanwhile, and in slices, between which the endpoint's hub serves others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

import gevent
from gevent.lock import BoundedSemaphore

SHARE = 0.1
"""The part of a core that making one thing may take, at most."""
SLICE = 0.005
"""Seconds of a slice."""
BREATH = 0.001
"""Seconds between two slices. With 0 the sockets of others would not be looked at."""

Breathe = Callable[[], object]
"""Called between two steps of some work, none of which takes long."""
Made = TypeVar("Made")


class Slices:
    """A ``Breathe`` that lets others have the hub when a slice is over. ``spent``: seconds of CPU that the work itself took."""

    def __init__(self) -> None:
        self._began, self._cpu = time.monotonic(), time.thread_time()  # waiting for others who use the machine costs nothing
        self.spent = 0.0

    def __call__(self) -> None:
        if time.monotonic() - self._began >= SLICE:
            self._count()
            gevent.sleep(BREATH)
            self._began, self._cpu = time.monotonic(), time.thread_time()

    def _count(self) -> None:
        self.spent += time.thread_time() - self._cpu
        self._cpu = time.thread_time()

    def over(self) -> float:
        """The work is done. Returns ``spent``."""
        self._count()
        return self.spent


class Fresh(Generic[Made]):
    """Called, it returns what ``make`` made last, and has it made anew where that is older than ``seconds``, or than takes
    ``SHARE`` of a core. All of it is called on one hub."""

    def __init__(self, make: Callable[[Breathe], Made], seconds: float) -> None:
        self._make = make
        self._seconds = seconds
        self._making = BoundedSemaphore()
        self._stale_at = 0.0
        self._forgotten = 0
        self.last: Made | None = None
        """However old; None before the first."""

    def __call__(self) -> Made:
        with self._making:  # who asks meanwhile waits for it, and gets the same
            if self.last is None or time.monotonic() > self._stale_at:
                slices, forgotten = Slices(), self._forgotten
                self.last = self._make(slices)
                kept = time.monotonic() + max(self._seconds, slices.over() / SHARE)
                self._stale_at = kept if forgotten == self._forgotten else 0.0
            return self.last

    def forget(self) -> None:
        """Something was changed: the next who asks shall see it, also where one is being made."""
        self._forgotten += 1
        self._stale_at = 0.0
