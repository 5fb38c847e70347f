"""One delivery of a message, as far as its broker is to be told of it: its handle and its lease. No I/O here.

A change of the lease gives a new handle, and makes the one before worthless: what is said with that makes the message come twice.
A change in the same millisecond as the delivery, or as the change before, loses the message where the broker keeps its
checkpoints in files: both have one name there. So a change waits until that millisecond is over, and is made again where it was
not.
"""

from __future__ import annotations

from enum import Enum

from framework.transports.rocketmq.wire.handles import Handle

APART = 0.002
"""Seconds between two changes of a delivery, or between it and the first."""


class After(Enum):
    """What is to be said when the change that is under way has been answered."""

    NOTHING = 0
    FINISH = 1
    REQUEUE = 2
    GIVE_UP = 3


class Delivery:
    """``began``: monotonic time at which its lease began for certain. ``heard``: when that was heard of."""

    __slots__ = ("after", "back", "began", "busy", "delay", "handle", "id", "over", "ready", "touched")

    def __init__(self, handle: Handle, began: float, heard: float, id: bytes) -> None:
        self.handle = handle
        self.id = id
        self.began = began
        self.ready = heard + APART
        """No change is sent before."""
        self.touched = heard
        """When it was delivered, or a touch was last asked for."""
        self.busy = False
        """A change is under way, or waits to be."""
        self.after = After.NOTHING
        self.delay = 0
        """Milliseconds: of the REQUEUE that comes after."""
        self.over = False
        """It is not ours any more: nothing is said of it."""
        self.back: dict[str, str] | None = None
        """What puts it into ``%DLQ%``, when it is given up; None: that is not asked for."""

    def changed(self, pop_time: int, invisible: int, revive_queue: int, began: float, heard: float) -> bool:
        """A change was answered. False: it fell into the millisecond of the one before, and is to be made again."""
        apart = pop_time != self.handle.pop_time
        self.handle = self.handle.changed(pop_time, invisible, revive_queue)
        self.began, self.ready = began, heard + APART
        return apart
