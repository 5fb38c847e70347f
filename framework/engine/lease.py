"""Keeps the leases: touches what waits and what runs within its time, gives back what has waited too long. It runs no handler.

All leases of a connection are equal, so the order of its ``in_flight`` is the order of their deadlines: a look at the front is
enough, and a message that is handled within a third of its lease costs nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import takewhile

from framework.errors import AlreadySettled
from framework.message import Message
from framework.transports.contract import TOUCH_AT, Connection, Limits

PERIOD = 0.1
"""Seconds between two looks."""


class LeaseKeeper:
    """The leases of one connection. ``timeout``: the seconds that a call may run, from its start."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self._touches = connection.limits.max_lease > connection.limits.lease
        self._received: dict[Message, float] = {}
        """Message -> when it was received; only for those touched since, whose time in ``in_flight`` is the touch's."""

    def keep(self, running: Callable[[], Mapping[Message, float]], now: float) -> list[Message]:
        """Touch what needs it; returns the waiting messages that must be given back instead of started.

        ``running()``: message -> when its call started; asked only when something is due.
        """
        due = self._due(now)
        if not due:
            return []
        started = running()
        self._received = {message: at for message, at in self._received.items() if message in self._connection.in_flight}
        return [message for message, at in due if not self._kept(message, at, started.get(message), now)]

    def _due(self, now: float) -> list[tuple[Message, float]]:
        limit = now - self._connection.limits.lease * TOUCH_AT
        return list(takewhile(lambda entry: entry[1] <= limit, self._connection.in_flight.items()))

    def _kept(self, message: Message, at: float, started: float | None, now: float) -> bool:
        """Touch it, or leave it if its call has had its time; False: it waits, and must not be started any more."""
        if started is None:
            if self._too_late(message, at, now):
                return False
        elif now - started > self._timeout:
            return True  # its lease runs out from here: the handler may run no longer
        if self._touches:
            self._received.setdefault(message, at)
            self._touch(message)
        return True

    def _touch(self, message: Message) -> None:
        try:
            self._connection.touch(message)
        except AlreadySettled:  # its connection has found out just now that the lease is over, and has counted it
            pass

    def _too_late(self, message: Message, at: float, now: float) -> bool:
        """It ran out while the hub was blocked (the broker delivers it again), or a call would outlive its longest lease."""
        limits = self._connection.limits
        waited = now - self._received.get(message, at)
        return now - at >= limits.lease or waited >= longest_wait(limits, self._timeout)


def longest_wait(limits: Limits, timeout: float) -> float:
    """Seconds that a message may wait for its call: what its longest lease leaves beside it, a third of a lease in any case."""
    return max(limits.max_lease - timeout, limits.lease * TOUCH_AT)


def calls_ahead(limits: Limits, timeout: float) -> float:
    """How many calls, each of them as long as it may be, a message can wait for: a whole number, or infinity."""
    calls = (limits.max_lease - timeout) / timeout
    return calls if calls == math.inf else max(0, int(calls))
