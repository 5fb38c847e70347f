"""How long to wait before trying again: functions of what failed so far and of the time passed in. Nothing here sleeps."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable

RETRY_BASE = 1.0
"""Seconds: the upper bound of the first retry's delay."""
RETRY_CAP = 600.0
"""Seconds: the upper bound of every retry's delay."""
RECONNECT_BASE = 0.1
RECONNECT_CAP = 15.0
"""Seconds: a node that is back after a long outage is dialled within this time."""
RECONNECT_OFTEN = 0.5
"""Seconds: so is one that is back after a short one."""
PAUSE_BASE = 1.0
PAUSE_CAP = 60.0
"""Seconds: a handler whose dependency is back after a long outage tries within this time."""
HISTORY = 50
"""Messages that the share of failures is taken of; what ended before them is forgotten."""
VOTES = 2
"""Tries after a pause that must agree: one could be a message's own fault, or luck with a service that is merely flaky."""
FEWEST_FAILURES = 10
"""Different messages that must have failed before their share matters: one poison message pauses nobody."""
KNOWN = 10_000
"""Messages of which it is remembered that they have failed. That they fail again is no news, or a thousand poison ones among ten
thousand, which come again when the others are done, would look like a dependency that is down."""


def retry_delay(attempts: int, *, chance: Callable[[], float] = random.random) -> float:
    """Seconds until a message that has been delivered ``attempts`` times is delivered again.

    Exponential with full jitter: messages that failed together do not come back together.
    """
    return chance() * min(RETRY_CAP, _doubled(RETRY_BASE, attempts - 1))


def reconnect_delay(failures: int, *, often: bool = False, chance: Callable[[], float] = random.random) -> float:
    """Seconds until a node that failed ``failures`` times in a row is dialled again; ``often``: it was there a moment ago.

    Half fixed, half jitter: many workers spread out, yet none hammers a node that is down.
    """
    cap = min(RECONNECT_CAP, RECONNECT_OFTEN) if often else RECONNECT_CAP
    bound = min(cap, _doubled(RECONNECT_BASE, failures - 1))
    return bound * (0.5 + 0.5 * chance())


def pause_delay(level: int, *, longest: float | None = None, chance: Callable[[], float] = random.random) -> float:
    """Seconds that the pause number ``level`` in a row lasts. Half fixed, half jitter, as for nodes."""
    cap = PAUSE_CAP if longest is None else longest
    return min(cap, _doubled(PAUSE_BASE, level - 1)) * (0.5 + 0.5 * chance())


def spread(seconds: float, *, chance: Callable[[], float] = random.random) -> float:
    """``seconds`` or up to 30 % less, drawn anew each round so that a fleet does not poll in step."""
    return seconds * (0.7 + 0.3 * chance())


def _doubled(base: float, times: int) -> float:
    return base * 2.0 ** max(0, min(times, 60))  # 60: an attempts counter of 65535 must not overflow a float


class BreakerState:
    """How many messages a handler may have, by how its messages ended: all, none during a pause, then one at a time to try.

    After a pause ``VOTES`` tries that agree decide whether it is over, or the next one begins. Nobody needs to be told when a
    pause is over: whatever becomes of a try (its connection ends, its lease is lost, it is given back), the next message is one
    as well. ``longest``: seconds of the longest pause, unless a handler asks for more.
    """

    def __init__(self, *, longest: float | None = None, chance: Callable[[], float] = random.random) -> None:
        self.level = 0
        """Pauses in a row; 0: there is none."""
        self.until = 0.0
        """When the pause ends, in the caller's time."""
        self._longest = longest
        self._chance = chance
        self._good = self._bad = 0.0
        self._known: dict[Hashable, None] = {}
        self._by_word = False  # the handler said that it cannot work
        self._works = False  # something went well, and no pause has begun since
        self._for = 0
        self._against: list[Hashable] = []

    def allowance(self, now: float) -> int | None:
        """How many may be in flight: 0, 1, or None for as many as otherwise."""
        if self.level == 0:
            return None
        return 0 if now < self.until else 1

    def went_well(self, count: int, now: float) -> bool:
        """``count`` messages did not fail; whether that closes the breaker. What ends during a pause began before it."""
        if self.level == 0:
            self._works = True
            self._weigh(good=count)
        elif now >= self.until:
            self._for += count
            if self._for >= VOTES:
                self.level = 0
                self._works = True
                self._good = self._bad = 0.0
                return True
        return False

    def failed(self, message: Hashable, now: float, *, before: bool = False) -> bool:
        """``message`` failed; whether a pause begins with it. ``before``: it was tried before, perhaps by another worker.

        Of such a one it is no news as long as others went well here: what comes again is what has failed, poison above all.
        """
        if self.level == 0:
            if not self._is_news(message) or (before and self._works):
                return False
            self._weigh(bad=1)
            if self._bad < FEWEST_FAILURES or self._bad <= self._good:
                return False
            return self._pause(now, 0.0, by_word=False)
        self._is_news(message)
        return message not in self._against and self._is_against(message, now, 0.0, by_word=False)

    @property
    def waits_for_a_word(self) -> bool:
        """The handler had said that it cannot work: a failure without such a word is its message's own."""
        return self.level > 0 and self._by_word

    def is_down(self, now: float, at_least: float = 0.0) -> bool:
        """A handler says that it cannot work, for ``at_least`` seconds; whether a pause begins with it."""
        if self.level == 0:
            return self._pause(now, at_least, by_word=True)
        return self._is_against(object(), now, at_least, by_word=True)

    def _is_against(self, message: Hashable, now: float, at_least: float, *, by_word: bool) -> bool:
        if now < self.until:  # it began before the pause
            return False
        self._against.append(message)
        return len(self._against) >= VOTES and self._pause(now, at_least, by_word=by_word)

    def _pause(self, now: float, at_least: float, *, by_word: bool) -> bool:
        self.level = 1 if self._for else self.level + 1  # a try that went well: what it depends on is there, and flaky
        self.until = now + max(at_least, pause_delay(self.level, longest=self._longest, chance=self._chance))
        self._by_word = by_word
        self._works = False
        self._for = 0
        self._against.clear()
        return True

    def _is_news(self, message: Hashable) -> bool:
        """Whether it fails for the first time, as far as is remembered."""
        known = self._known
        if message in known:
            return False
        known[message] = None
        if len(known) > KNOWN:
            del known[next(iter(known))]
        return True

    def _weigh(self, good: float = 0.0, bad: float = 0.0) -> None:
        self._good += good
        self._bad += bad
        share = HISTORY / max(HISTORY, self._good + self._bad)
        self._good *= share
        self._bad *= share
