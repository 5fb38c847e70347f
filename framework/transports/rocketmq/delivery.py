"""One delivery of a message, as far as its broker is to be told of it: its handle and its lease. No I/O here.

A change of the lease gives a new handle, and makes the one before worthless: what is said with that makes the message come twice.
A change in the same millisecond as the delivery, or as the change before, loses the message where the broker keeps its
checkpoints in files: both have one name there. So a change waits until that millisecond is over, and is made again where it was
not.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from framework.message import Message
from framework.transports.rocketmq.wire.handles import Handle

APART = 0.002
"""Seconds between two changes of a delivery, or between it and the first."""
_LONGEST = 10
"""Times that this is doubled, at most, where changes fall into one millisecond again and again: the broker's clock stands."""


class After(Enum):
    """What is to be said when the change that is under way has been answered."""

    NOTHING = 0
    FINISH = 1
    REQUEUE = 2
    GIVE_UP = 3


class Delivery(msgspec.Struct, gc=False, eq=False):
    """Times are monotonic."""

    first: Handle
    """Of some message of the same POP and queue, which all of them share; of its own, once it was changed."""
    offset: int
    began: float
    """When its lease began, for certain."""
    heard: float
    """When that was heard of."""
    touched: float
    """When it was delivered, or a touch was last asked for."""
    id: bytes
    back: dict[str, str] | None = None
    """What puts it into ``%DLQ%``, when it is given up; None: that is not asked for."""
    busy: bool = False
    """A change is under way, or waits to be."""
    after: After = After.NOTHING
    delay: int = 0
    """Milliseconds: of the REQUEUE that comes after."""
    repeats: int = 0
    """How many changes, one after the other, fell into the millisecond of the one before."""
    over: bool = False
    """It is not ours any more: nothing is said of it."""

    @property
    def handle(self) -> Handle:
        return self.first if self.first.offset == self.offset else self.first.of(self.offset)

    @property
    def ready(self) -> float:
        """No change is sent before."""
        return self.heard + APART * (1 << min(max(0, self.repeats - 1), _LONGEST))

    def changed(self, pop_time: int, invisible: int, revive_queue: int, began: float, heard: float) -> bool:
        """A change was answered. False: it fell into the millisecond of the one before, and is to be made again."""
        apart = pop_time != self.first.pop_time
        self.repeats = 0 if apart else self.repeats + 1
        self.first = self.handle.changed(pop_time, invisible, revive_queue)
        self.began, self.heard = began, heard
        return apart


class Leases:
    """``lease_guard.Leases``: by what the broker is known to have done."""

    def __init__(self, deliveries: dict[Message, Delivery], seconds: float) -> None:
        self._deliveries = deliveries
        self._seconds = seconds

    def is_over(self, message: Message, at: float, now: float) -> bool:
        one = self._deliveries[message]
        return one.over or now - one.began >= self._seconds

    def over(self, in_flight: dict[Message, float], now: float) -> list[Message]:
        return [message for message, one in self._deliveries.items() if one.over or now - one.began >= self._seconds]
