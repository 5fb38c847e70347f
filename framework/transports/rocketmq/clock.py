"""When something happened at a broker, by this machine's monotonic clock. No I/O here, and no clock of its own.

A broker says by its own clock when it delivered a message, or began a lease anew. What it says arrives later, and much later
where the hub was blocked. The shortest way of late tells how the two clocks stand to each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from framework.transports.rocketmq.wire.frames import number_in

FAR: Final = 2**50
"""Milliseconds since 1970: later than any clock. A broker answers a POP from then at once, with its own time."""

WINDOW = 30.0
"""Seconds: what two clocks that drift apart are to each other is followed within two of these."""
SET = 0.1
"""Seconds: what seems to have happened so long before it was asked for shows that the broker's clock was set back."""


class BrokerClock:
    """Of one broker, as one connection sees it."""

    def __init__(self) -> None:
        self._since = -math.inf
        self._before = self._shortest = math.inf
        """Our clock less the broker's: the least that was seen, in the last window and in this one."""

    def at(self, told: int, heard: float, asked: float) -> float:
        """The monotonic time of what happened at ``told`` (ms since 1970 there), was ``asked`` for and ``heard`` of then; never
        after that, and not before."""
        if heard - self._since >= WINDOW:
            self._since, self._before, self._shortest = heard, self._shortest, math.inf
        apart = heard - told / 1000
        self._shortest = min(self._shortest, apart)
        found = told / 1000 + min(self._before, self._shortest)
        if found < asked - SET:  # else all that comes would be late, for as long as the old time is remembered
            self._before, self._shortest = math.inf, apart
        return min(heard, max(asked, found))


class Born:
    """What a POP says of when it was made, in milliseconds since 1970. With authorization switched on a broker answers at once
    what was made too long ago by its own clock, and takes 0, which else is "now", for 1970; so its time is asked for first."""

    def __init__(self, *, told: bool) -> None:
        """``told``: it must be said."""
        self._told = told
        self._offset: int | None = None
        """Its clock less ours."""

    def of_pop(self, now: float, poll: float) -> tuple[int, float]:
        """bornTime, and the seconds that it may wait, of ``poll``. ``now``: seconds since 1970."""
        if not self._told:
            return 0, poll
        if self._offset is None:
            return FAR, 0.0
        return round(now * 1000) + self._offset, poll

    def answered(self, fields: Mapping[str, str], words: str, now: float) -> None:
        """The answer to one. Where a clock was set since, its time is asked for again."""
        if told := number_in(fields, "popTime"):
            self._offset = told - round(now * 1000)
        elif "timeout too much" in words:
            self._offset = None
