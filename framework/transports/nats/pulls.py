"""The pull requests of one connection: how many messages they may still bring, which to send, which to take back. No I/O here.

A pull has a SID of its own, so that it is known which one a message or a status belongs to; the SID is kept until the server has
confirmed that the pull is over, because until then more may come on it. Source: ADR-13 of NATS, pull consumers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

EXPIRES = 30.0
"""Seconds after which the server gives a pull back that has not brought all."""
BEAT = 5.0
"""Seconds between two signs of life of a pull that waits. A server that has lost it, or its consumer, says nothing at all."""
SLACK = 1.0
QUIET = 0.25
"""Seconds without a message after which a pull is taken back that asks for too many."""
HURRY = 1.0
"""Seconds after which it is taken back whatever it brings, where nothing more is wanted."""
_NANO = 10**9


class Pull:
    """One request. ``left``: messages that it may still bring. ``moved``: when it brought one last, or was made."""

    __slots__ = ("cancelled", "heard", "left", "moved", "sid")

    def __init__(self, sid: int, left: int, now: float) -> None:
        self.sid = sid
        self.left = left
        self.heard = self.moved = now
        self.cancelled = False


class Pulls:
    """``subscribe()`` makes a SID. Monotonic times, in seconds."""

    def __init__(self, subscribe: Callable[[], int]) -> None:
        self._subscribe = subscribe
        self._pulls: dict[int, Pull] = {}
        self._idle: list[int] = []
        """SIDs of pulls that are over for certain: another may use them."""
        self.outstanding = 0
        """Messages that may still come."""
        self.largest = 0
        """The most that a pull may ask for, where the consumer has such a limit; 0: none."""

    def __bool__(self) -> bool:
        return bool(self._pulls)

    def brought(self, sid: int, now: float) -> None:
        """A message came."""
        if (pull := self._pulls.get(sid)) is None:
            return
        pull.heard = pull.moved = now
        pull.left -= 1
        self.outstanding -= 1
        if not pull.left and not pull.cancelled:
            self._over(pull)

    def alive(self, sid: int, now: float) -> None:
        """It waits, and the server knows."""
        if (pull := self._pulls.get(sid)) is not None:
            pull.heard = now

    def ended(self, sid: int) -> None:
        """The server says that it brings no more."""
        if (pull := self._pulls.get(sid)) is not None and not pull.cancelled:
            self._over(pull)

    def _over(self, pull: Pull) -> None:
        self.outstanding -= pull.left
        del self._pulls[pull.sid]
        self._idle.append(pull.sid)

    def wanted(self, room: int, now: float) -> list[tuple[int, int, bool]]:
        """Which pulls to send so that ``room`` messages may come: the SID, how many, whether the SID is a new one.

        None while more than half of it is asked for: a pull for each message costs more than the message."""
        lacking = room - self.outstanding
        if self.outstanding > room // 2:
            return []
        asked = []
        while lacking > 0:
            count = min(lacking, self.largest or lacking)
            fresh = not self._idle
            sid = self._subscribe() if fresh else self._idle.pop()
            self._pulls[sid] = Pull(sid, count, now)
            self.outstanding += count
            lacking -= count
            asked.append((sid, count, fresh))
        return asked

    def over(self, room: int) -> int:
        """How many more than ``room`` may come on pulls that are not taken back."""
        over = self.outstanding - room
        return over - sum(pull.left for pull in self._pulls.values() if pull.cancelled) if over > 0 else over

    def excess(self, room: int, since: float = math.inf) -> list[int]:
        """The SIDs of pulls to take back, so that no more than ``room`` may come. They count until ``gone``.

        ``since``: a pull that has brought something since then is left alone. What the server was sending on a pull that is taken
        back goes nowhere: it is delivered again, and nobody has seen an attempt that is counted."""
        over, chosen = self.over(room), []
        for pull in list(self._pulls.values()):
            if over <= 0:
                break
            if not pull.cancelled and pull.moved <= since:
                pull.cancelled = True
                over -= pull.left
                chosen.append(pull.sid)
        return chosen

    def silent(self, now: float) -> list[int]:
        """The SIDs of pulls of which nothing was heard for two beats: they are taken back."""
        late = [pull for pull in self._pulls.values() if not pull.cancelled and now - pull.heard > 2 * BEAT + SLACK]
        for pull in late:
            pull.cancelled = True
        return [pull.sid for pull in late]

    def moved(self) -> list[int]:
        """The SIDs of all of them, and of those that are over: another server is asked from now on, which knows none."""
        idle, self._idle = self._idle, []
        return self.excess(0) + idle

    def gone(self, sids: list[int]) -> None:
        """The server has confirmed that it has read that these are taken back."""
        for sid in sids:
            if (pull := self._pulls.pop(sid, None)) is not None:
                self.outstanding -= pull.left

    def clear(self) -> None:
        self._pulls.clear()
        self._idle.clear()
        self.outstanding = 0


def request(count: int, longest: int = 0) -> bytes:
    """The body of a pull for ``count`` messages. ``longest``: ns after which it may end at most, where the consumer has such a
    limit; 0: none. A pull of more is refused, and so is one whose signs of life are further apart than half of it."""
    ours = round(EXPIRES * _NANO)
    expires = min(ours, longest or ours)
    return msgspec.json.encode({"batch": count, "expires": expires, "idle_heartbeat": min(round(BEAT * _NANO), expires // 2)})
