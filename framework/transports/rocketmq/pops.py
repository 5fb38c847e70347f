"""Which POPs to send: how many messages those under way may still bring, and when another is worth it. No I/O here.

A POP that waits at the broker cannot be taken back: it counts until it is answered.
"""

from __future__ import annotations

MOST = 32
"""Messages that one POP may ask for; the broker refuses more."""
WORTH = 16
"""Messages for which another goes beside one that is under way: each costs the broker as much, however few it brings."""
AT_ONCE = 8
"""POPs under way at a time: they take turns at the same queues. With four a broker waited for us now and then."""


class Pops:
    """Those of one connection."""

    def __init__(self) -> None:
        self._under_way = 0
        self.outstanding = 0
        """Messages that may still come."""
        self.rest = 0
        """How many more there were at the broker, as it said last."""

    def __bool__(self) -> bool:
        return self._under_way > 0

    def wanted(self, room: int) -> list[int]:
        """How many messages each POP that is to be sent now asks for, so that no more than ``room`` may come. They are under way.

        One waits for what may come. Others go beside it only for what the broker has for certain, and for many."""
        asked: list[int] = []
        while self._under_way < AT_ONCE and (count := min(MOST, room - self.outstanding)) > 0:
            if self._under_way and (self.outstanding >= self.rest or count < WORTH):
                break
            self._under_way += 1
            self.outstanding += count
            asked.append(count)
        return asked

    def ended(self, count: int, rest: int = 0) -> None:
        """One that asked for ``count`` was answered, or never will be. ``rest``: as the answer says."""
        self._under_way -= 1
        self.outstanding -= count
        self.rest = rest
