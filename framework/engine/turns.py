"""Measures one hub, for code that must share its turns fairly: when it last turned, how long its turns take, how much of the
time it waits. It changes nothing."""

from __future__ import annotations

import time
from typing import Any

SLICE = 0.005
"""Seconds of one hub turn that handlers may use before the hub polls its sockets again."""


class Turns:
    """Watches one hub. ``stamp`` is written once per turn, so reading it costs an attribute, not a clock."""

    __slots__ = ("_after_poll", "_before_poll", "_ended", "_hub", "_wait", "mean", "stamp")

    def __init__(self, hub: Any) -> None:
        self.stamp = time.monotonic()
        """Monotonic time at which the current turn began, that is, at which the last poll ended."""
        self.mean = 0.0
        """Seconds of work in a turn, the wait in the poll not counted; a moving average over about ten turns."""
        self._hub = hub
        self._wait = 0.0
        self._ended = self.stamp
        self._after_poll = hub.loop.check(ref=False)
        # The lowest priority runs last: the callbacks that gevent runs before a poll belong to the turn as well.
        self._before_poll = hub.loop.prepare(ref=False, priority=hub.loop.MINPRI)

    def start(self) -> None:
        self._after_poll.start(self._begin)
        self._before_poll.start(self._end)

    def stop(self) -> None:
        for watcher in (self._after_poll, self._before_poll):
            watcher.close()

    @property
    def over(self) -> bool:
        """The hub was destroyed, and turns no more."""
        return self._hub.loop is None

    @property
    def idle(self) -> float:
        """The part of the time that the hub waits in its polls, from 0 to 1; of the same turns as ``mean``."""
        time_of_both = self._wait + self.mean
        return self._wait / time_of_both if time_of_both else 1.0

    def _begin(self) -> None:
        self.stamp = now = time.monotonic()
        self._wait += (now - self._ended - self._wait) * 0.1

    def _end(self) -> None:
        self._ended = now = time.monotonic()
        self.mean += (now - self.stamp - self.mean) * 0.1
