"""When something happened at a broker, by this machine's monotonic clock. No I/O here, and no clock of its own.

A broker says by its own clock when it delivered a message, or began a lease anew. What it says arrives later, and much later
where the hub was blocked. The shortest way of late tells how the two clocks stand to each other.
"""

from __future__ import annotations

import math

WINDOW = 30.0
"""Seconds: a clock that is set, at the broker, is followed within two of these."""


class BrokerClock:
    """Of one broker, as one connection sees it."""

    def __init__(self) -> None:
        self._since = -math.inf
        self._before = self._shortest = math.inf
        """Our clock less the broker's: the least that was seen, in the last window and in this one."""

    def at(self, told: int, heard: float) -> float:
        """The monotonic time of what happened at ``told`` (ms since 1970 there), and was ``heard`` of then; never after that."""
        if heard - self._since >= WINDOW:
            self._since, self._before, self._shortest = heard, self._shortest, math.inf
        self._shortest = min(self._shortest, heard - told / 1000)
        return min(heard, told / 1000 + min(self._before, self._shortest))
