"""A seat: the place of one process among the N, with the one at work and the one that is to follow it. It starts nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from framework.master.child import Child

STEADY = 60.0
"""Seconds of life after which a death is a first one again."""
LONGEST_PAUSE = 30.0


def pause(deaths: int) -> float:
    """Seconds before a seat is taken again after so many deaths in a row: none at first, then 1, 2, 4 and so on."""
    return 0.0 if deaths <= 1 else min(LONGEST_PAUSE, 2 ** (deaths - 2))


@dataclass(eq=False)
class Seat:
    """``number`` counts from 1."""

    number: int
    child: Child | None = None
    """At work: it has subscribed."""
    successor: Child | None = None
    """Starting."""
    deaths: int = 0
    """In a row, or recycling that came as soon."""
    not_before: float = 0.0
    """Monotonic: when another may be started."""

    def children(self) -> Iterator[Child]:
        yield from (one for one in (self.child, self.successor) if one is not None)

    def wants(self, generation: int) -> bool:
        """Another is to be started."""
        if self.successor is not None or time.monotonic() < self.not_before:
            return False
        return self.child is None or bool(self.child.due) or self.child.generation != generation

    def promote(self) -> Child | None:
        """The successor has subscribed; returns the one whose place it takes."""
        former, self.child, self.successor = self.child, self.successor, None
        return former

    def lost(self, child: Child) -> float:
        """It has ended, or is replaced, after a short life or a long one; returns the seconds until the next start."""
        self.child = None if child is self.child else self.child
        self.successor = None if child is self.successor else self.successor
        return self.rest(child.age)

    def rest(self, age: float = 0.0) -> float:
        """After a life of ``age`` seconds; returns the seconds until the next start."""
        self.deaths = 1 if age > STEADY else self.deaths + 1
        seconds = pause(self.deaths)
        self.not_before = time.monotonic() + seconds
        return seconds
