"""Which messages of a queue were read, sparsely: by them it is found how far the queue is still the one that was read. No I/O.

A broker that has lost the end of its log, by a power cut or to a replica that was behind, gives those offsets to other messages;
a topic that was made anew gives all of them. An offset alone does not tell: there may be as many messages as before when it is
asked for. No clock is asked, because that of a machine whose power was cut may be behind.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from enum import Enum

MOST = 32
"""Points that are kept. The older ones lie further apart, so that what is handled again is a small part of what was lost."""


class Found(Enum):
    """What lies at the offset of a point."""

    SAME = 0
    OTHER = 1
    """Another message, or none."""
    EXPIRED = 2
    """The queue begins behind it."""


class Trail:
    """Of one queue. It is true once it has a point."""

    __slots__ = ("_marks", "_offsets")

    def __init__(self) -> None:
        self._offsets, self._marks = array("q"), array("q")  # there may be one for each queue of a thousand topics

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, id: bytes, timestamp: int) -> None:
        """The message there was taken: the last of an answer."""
        while self._offsets and self._offsets[-1] >= offset:  # it was read before, from an earlier offset on
            del self._offsets[-1], self._marks[-1]
        self._offsets.append(offset)
        self._marks.append(_mark(id, timestamp))
        if len(self._offsets) > MOST:
            del self._offsets[1 : MOST // 2 : 2], self._marks[1 : MOST // 2 : 2]

    def before(self, offset: int) -> list[int]:
        """The offsets of its points before ``offset``."""
        return [each for each in self._offsets if each < offset]

    def is_same(self, offset: int, id: bytes, timestamp: int) -> bool:
        """Whether this is the message of the point there."""
        return self._marks[self._offsets.index(offset)] == _mark(id, timestamp)


def same_of(points: Sequence[int], look: Callable[[int], Found]) -> int:
    """How many of ``points``, the first ones, are what they were, as ``look(offset)`` tells. It looks at the last one first: that
    mostly is."""
    low, high = 0, len(points)
    at = high - 1
    while low < high:
        if look(points[at]) is Found.OTHER:
            high = at
        else:  # one that has expired tells nothing of what is behind it
            low = at + 1
        at = (low + high) // 2
    return low


def _mark(id: bytes, timestamp: int) -> int:
    """An id may be given out again, with another time."""
    return hash((id, timestamp))
