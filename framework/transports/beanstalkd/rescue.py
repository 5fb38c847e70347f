"""Keeps the jobs of a connection while the hub is blocked; runs in another thread. No I/O here.

beanstalkd pushes nothing and has no heartbeats, so only leases are at stake: those of jobs in flight, of jobs that wait to be
delivered, of jobs that were settled and not sent, and of jobs whose RESERVED lies unread in a socket.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from framework.message import Message
from framework.transports.beanstalkd.reserved_job import Keeper, ReservedJob
from framework.transports.contract import TOUCH_AT

AHEAD = 0.4
"""Seconds until the next rescue, as a rule: what will be due by then is touched now. Else a job of one second, whose last touch
the hub counted and was blocked before it sent, would be touched too late."""
Touch = tuple[int, object]
"""A job, and what the answer to its touch means: of a message in flight ("touch", message), else None."""
T = TypeVar("T")


class Rescue:
    """The state of one time that the hub was blocked, on one connection."""

    def __init__(self) -> None:
        self.touched: dict[Message, float] = {}
        """Messages in flight -> when they were touched here, the oldest first."""

    def touches(
        self, in_flight: Mapping[Message, float], jobs: Mapping[Message, ReservedJob], lease: float, now: float,
        expired: Collection[Message],
    ) -> dict[Keeper, list[Touch]]:  # fmt: skip
        """Those of messages in flight: after a third of a lease, or now, where nobody has asked how long theirs is."""
        due: dict[Keeper, list[Touch]] = {}
        for message, at in snapshot(in_flight.items()):
            job = jobs.get(message)
            if job is None or message in expired:  # None: settled in this moment
                continue
            if job.priority < 0 or now - max(at, self.touched.get(message, at)) >= lease * TOUCH_AT - AHEAD:
                self.touched.pop(message, None)
                self.touched[message] = now
                due.setdefault(job.keeper, []).append((job.number, ("touch", message)))
        return due


def snapshot(some: Iterable[T]) -> list[T]:
    """Of what the hub may be changing."""
    while True:
        try:
            return list(some)
        except RuntimeError:  # it changed
            continue
