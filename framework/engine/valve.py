"""Decides whether a handler asks for messages: not in a pause, not in a jam, not while some wait too long. ``credit`` says how
many."""

from __future__ import annotations

from collections.abc import Iterable

from framework.engine.remote_slots import RemoteSlots
from framework.engine.slots import Slots, clock
from framework.transports.contract import Connection

JAMMED = 1.0
"""Seconds without a remote slot for any call after which what waits is given back."""


class Valve:
    """Of one handler, before its ``slots`` and ``remote``."""

    def __init__(self, slots: Slots, remote: RemoteSlots | None) -> None:
        self.paused = False
        """Nothing is asked for; what has come is handled."""
        self._slots = slots
        self._remote = remote
        self._overdue = False
        self._jammed_since = clock() if remote is not None and not remote.usable else None

    def admits(self, granted: int, in_flight: int) -> int:
        """How much of what is ``granted`` a connection may have, with ``in_flight`` messages not settled."""
        if self.paused or self._jammed_since is not None:
            return 0
        if self._overdue:
            self._overdue = self._slots.full
            return min(granted, in_flight)
        return granted

    def overdue(self) -> None:
        """What waited has waited too long: until a slot is free, no more is asked for than has come."""
        self._overdue = True

    def jammed(self, now: float) -> bool:
        """Every remote slot has been stuck, or being started again, for a while: messages are for other workers."""
        if self._remote is None or self._remote.usable:
            self._jammed_since = None
        elif self._jammed_since is None:
            self._jammed_since = now
        return self._jammed_since is not None and now - self._jammed_since > JAMMED

    def at_rest(self, connections: Iterable[Connection]) -> bool:
        """Nothing has to be looked at again: each has the one that an idle connection has, or it is paused."""
        return self.paused or all(connection.granted == 1 for connection in connections)
