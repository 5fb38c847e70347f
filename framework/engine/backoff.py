"""How long to wait before trying again: functions of what failed so far and of the time passed in. Nothing here sleeps."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable

RETRY_BASE = 1.0
"""Seconds: the upper bound of the first retry's delay."""
RETRY_CAP = 600.0
"""Seconds: the upper bound of every retry's delay."""
RECONNECT_BASE = 0.1
RECONNECT_CAP = 15.0
"""Seconds: a node that is back after a long outage is dialled within this time."""
PAUSE_BASE = 1.0
PAUSE_CAP = 60.0
"""Seconds: a handler whose dependency is back after a long outage tries within this time."""
HISTORY = 50
"""Messages that the share of failures is taken of; what ended before them is forgotten."""
FEWEST_FAILURES = 10
"""Different messages that must have failed before their share matters: one poison message pauses nobody."""


def retry_delay(attempts: int, *, chance: Callable[[], float] = random.random) -> float:
    """Seconds until a message that has been delivered ``attempts`` times is delivered again.

    Exponential with full jitter: messages that failed together do not come back together.
    """
    return chance() * min(RETRY_CAP, _doubled(RETRY_BASE, attempts - 1))


def reconnect_delay(failures: int, *, chance: Callable[[], float] = random.random) -> float:
    """Seconds until a node that failed ``failures`` times in a row is dialled again.

    Half fixed, half jitter: many workers spread out, yet none hammers a node that is down.
    """
    bound = min(RECONNECT_CAP, _doubled(RECONNECT_BASE, failures - 1))
    return bound * (0.5 + 0.5 * chance())


def pause_delay(level: int, *, chance: Callable[[], float] = random.random) -> float:
    """Seconds that the pause number ``level`` in a row lasts. Half fixed, half jitter, as for nodes."""
    return min(PAUSE_CAP, _doubled(PAUSE_BASE, level - 1)) * (0.5 + 0.5 * chance())


def spread(seconds: float, *, chance: Callable[[], float] = random.random) -> float:
    """``seconds`` or up to 30 % less, drawn anew each round so that a fleet does not poll in step."""
    return seconds * (0.7 + 0.3 * chance())


def _doubled(base: float, times: int) -> float:
    return base * 2.0 ** max(0, min(times, 60))  # 60: an attempts counter of 65535 must not overflow a float


class Restraint:
    """How many messages a handler may have, by how its messages ended: all, none during a pause, then one as a probe.

    Level, end of the pause and history are all its state, and nobody needs to be told when a pause is over: whatever becomes
    of a probe (its connection ends, its lease is lost, it is given back), the next message is one as well.
    """

    def __init__(self, *, chance: Callable[[], float] = random.random) -> None:
        self.level = 0
        """Pauses in a row; 0: there is none."""
        self.until = 0.0
        """When the pause ends, in the caller's time."""
        self._chance = chance
        self._good = self._bad = 0.0
        self._failing: deque[Hashable] = deque(maxlen=HISTORY)

    def allowance(self, now: float) -> int | None:
        """How many may be in flight: 0, 1, or None for as many as otherwise."""
        if self.level == 0:
            return None
        return 0 if now < self.until else 1

    def went_well(self, count: int, now: float) -> bool:
        """``count`` messages did not fail; whether that ends the restraint. What ends during a pause began before it."""
        if self.level == 0:
            self._weigh(good=count)
        elif count and now >= self.until:
            self.level = 0
            self._forget()
            return True
        return False

    def failed(self, message: Hashable, now: float) -> bool:
        """``message`` failed; whether a pause begins with it."""
        if self.level == 0:
            if message not in self._failing:  # the same one again says nothing new
                self._failing.append(message)
                self._weigh(bad=1)
            if len(self._failing) < FEWEST_FAILURES or self._bad <= self._good:
                return False
        return self.is_down(now)

    def is_down(self, now: float, at_least: float = 0.0) -> bool:
        """A handler says that it cannot work, for ``at_least`` seconds; whether a pause begins with it."""
        if self.level and now < self.until:  # it began before the pause
            return False
        self.level += 1
        self.until = now + max(at_least, pause_delay(self.level, chance=self._chance))
        return True

    def _weigh(self, good: float = 0.0, bad: float = 0.0) -> None:
        self._good += good
        self._bad += bad
        share = HISTORY / max(HISTORY, self._good + self._bad)
        self._good *= share
        self._bad *= share

    def _forget(self) -> None:
        self._good = self._bad = 0.0
        self._failing.clear()
