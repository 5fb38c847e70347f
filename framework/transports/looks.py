"""When a publishing link looks for answers that do not come: every second or so, and earlier where one would be overdue.

What is found then, and what is done about it, is the link's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic

from gevent.hub import get_hub


class Looks:
    """Of one link, on its hub. ``tick()`` is called every ``seconds``, ``look()`` at an earlier time where one is asked for."""

    def __init__(self, seconds: float, tick: Callable[[], None], look: Callable[[], None]) -> None:
        loop = get_hub().loop
        self.next = self._next_tick = monotonic() + seconds
        """When the next look is due."""
        self._seconds = seconds
        self._look = look
        self._ticker = loop.timer(seconds, seconds, ref=False)
        self._alarm = loop.timer(0.0)
        self._ticker.start(tick)

    def at(self, when: float) -> None:
        """Look at ``when``, unless that will be done before."""
        if when >= self.next:
            return
        self.next = when
        self._alarm.close()
        self._alarm = get_hub().loop.timer(max(0.0, when - monotonic()))
        self._alarm.start(self._look)

    def ticked(self, now: float) -> None:
        self._next_tick = now + self._seconds

    def looked(self, due: float) -> None:
        """``due``: when the next answer will be overdue."""
        if self.next != -math.inf:
            self.next = self._next_tick
            self.at(due)

    def close(self) -> None:
        """Nobody waits any more."""
        self.next = -math.inf
        self._ticker.close()
        self._alarm.close()
        self._look = _nothing  # which refers to the link


def _nothing() -> None: ...
