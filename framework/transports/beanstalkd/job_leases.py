"""How long the jobs of a connection are ours. Each job has a lease of its own, and the engine knows one for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sized

from framework.transports.beanstalkd.reserved_job import ReservedJob
from framework.transports.contract import Limits

MAX_GRANT = 1000
"""Jobs that one poller may hold: the server looks through all of them when the oldest is settled."""


def limits_of(ttr: float) -> Limits:
    return Limits(lease=float(ttr), max_lease=math.inf, max_grant=MAX_GRANT)


class JobLeases:
    """They count as equal: as the shortest of those in flight. ``changed(limits)`` is called with what holds from now on."""

    def __init__(self, ttr: float, in_flight: Sized, changed: Callable[[Limits], None]) -> None:
        self._in_flight = in_flight
        self._changed = changed
        self._lease = ttr

    def came(self, ttr: int, *, alone: bool) -> None:
        """A job with a lease of ``ttr`` seconds. ``alone``: no other waits to be delivered."""
        if ttr < self._lease or (ttr != self._lease and not self._in_flight and alone):
            self._limit(ttr)

    def look(self, jobs: Iterable[ReservedJob]) -> None:
        """The job with the shortest one may have been settled: ``jobs`` are those that are left."""
        shortest = min((job.ttr for job in jobs if job.ttr), default=0)
        if shortest > self._lease:
            self._limit(shortest)

    def _limit(self, ttr: int) -> None:
        self._lease = ttr
        self._changed(limits_of(ttr))
