"""Which messages of a queue were read, sparsely: by them it is found how far the queue is still the one that was read. No I/O.

A broker that has lost the end of its log, by a power cut or to a replica that was behind, gives those offsets to other messages;
a topic that was made anew gives all of them. An offset alone does not tell: there may be as many messages as before when it is
asked for. No clock is asked, because that of a machine whose power was cut may be behind.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
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
    """Of one queue. It is true once something was read."""

    __slots__ = ("_marks", "_offsets", "_sure", "most")

    def __init__(self) -> None:
        self._offsets, self._marks = array("q"), array("q")  # there may be one for each queue of a thousand topics
        self._sure = -1
        """The points up to there were seen to be of one queue. Those behind it may be of another, which took its place while a
        PULL waited at an offset that it had reached by then."""
        self.most = 0
        """The furthest that it was ever read here. A group that is further was read by another member."""

    def __bool__(self) -> bool:
        return self.most > 0

    @property
    def points(self) -> list[int]:
        """Their offsets, ascending."""
        return list(self._offsets)

    @property
    def last(self) -> int:
        """The offset of the last point; -1: there is none."""
        return self._offsets[-1] if self._offsets else -1

    @property
    def witness(self) -> int | None:
        """The offset of the point that tells whether those behind it are of the same queue. None: all are known to be."""
        return None if self.last <= self._sure else self._offsets[self.sure - 1]

    @property
    def sure(self) -> int:
        """How many points are of one queue: the first ones, and one at least where there is any."""
        return max(bisect_right(self._offsets, self._sure), min(1, len(self._offsets)))

    def is_sure_of(self, offset: int) -> None:
        """All that was read up to ``offset`` is of the queue that is there."""
        self._sure = min(offset, self.last)

    def note(self, taken: Sequence[tuple[int, bytes, int]]) -> None:
        """``taken``: offset, id and time of the first and of the last message that was taken of an answer. The last is a point,
        and of the first answer of all the first one as well."""
        for one in taken[-1:] if self else taken:
            self.add(*one)

    def add(self, offset: int, id: bytes, timestamp: int) -> None:
        """A point: the message there was taken."""
        while self._offsets and self._offsets[-1] >= offset:  # it was read before, from an earlier offset on
            del self._offsets[-1], self._marks[-1]
        self._sure = min(self._sure, offset - 1)
        self._offsets.append(offset)
        self._marks.append(_mark(id, timestamp))
        self.most = max(self.most, offset + 1)
        if len(self._offsets) > MOST:
            del self._offsets[1 : MOST // 2 : 2], self._marks[1 : MOST // 2 : 2]

    def keep(self, count: int) -> None:
        """Only the first ``count`` points: the others are of messages that are gone."""
        del self._offsets[count:], self._marks[count:]
        self._sure = self.last

    def is_same(self, offset: int, id: bytes, timestamp: int) -> bool:
        """Whether this is the message of the point there."""
        return self._marks[self._offsets.index(offset)] == _mark(id, timestamp)


def follows(trail: Trail, offset: int, look: Callable[[int], tuple[Found, int]]) -> int:
    """Where a group goes on of which its broker says ``offset``: there, or where the queue ceases to be the one that was read.

    ``look(at)``: what lies there, and where the queue ends. The points behind ``offset`` tell as well: a broker that was killed
    may have forgotten what it was told last. What is not the same is dropped from ``trail``."""
    end, points = offset, trail.points

    def found(at: int) -> Found:
        nonlocal end
        what, end = look(at)
        return what

    same = same_in(trail, found)
    trail.keep(same)
    known = points[same - 1] + 1 if same else 0
    if same == len(points) and offset > trail.most and end >= offset:  # another member has read on since
        return offset
    return min(offset, known)  # up to ``most`` nothing behind the last point was for us


def same_in(trail: Trail, look: Callable[[int], Found]) -> int:
    """As ``same_of``, of all points of ``trail``. Those that may be of a queue that took its place are looked at last."""
    points, sure = trail.points, trail.sure
    same = same_of(points[:sure], look)
    return same + same_of(points[sure:], look) if same == sure else same


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


def behind(kept: int, offset: int, look: Callable[[int], int]) -> int:
    """The first message of a queue before ``offset`` that lies behind ``kept`` in the log of its broker; ``offset`` if none does.
    ``look(at)``: where the one at an offset lies."""
    return bisect_right(range(offset), kept, key=look)


def _mark(id: bytes, timestamp: int) -> int:
    """An id may be given out again, with another time."""
    return hash((id, timestamp))
