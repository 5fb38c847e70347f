"""Asks for the statistics of jobs that were delivered without asking, once they have been in flight for a while: their leases
matter then."""

from __future__ import annotations

from collections.abc import Callable, Container
from time import monotonic

from gevent.hub import get_hub

from framework.alarm import Countdown
from framework.message import Message
from framework.transports.beanstalkd.reserved_job import ReservedJob

LATER = 0.05
"""Seconds in flight; the shortest lease is 1 s."""


class Unasked:
    """Those of one connection. ``guarded(work)`` runs what a timer asks for, and catches what that raises."""

    def __init__(
        self, in_flight: Container[Message | None], ask: Callable[[list[ReservedJob]], None], guarded: Callable[..., None]
    ) -> None:
        self._in_flight = in_flight
        self._ask = ask
        self._guarded = guarded
        self._jobs: list[ReservedJob] = []
        self._timer = Countdown(get_hub().loop, LATER)

    def add(self, jobs: list[ReservedJob]) -> None:
        """Some of these were delivered just now, and are in flight still."""
        self._jobs += [job for job in jobs if not job.asked and job.message in self._in_flight]
        self._wait()

    def _wait(self) -> None:
        if self._jobs and not self._timer.active:
            self._timer.start(self._guarded, self._look)

    def _look(self) -> None:
        due = monotonic() - LATER
        left = [job for job in self._jobs if not job.asked and job.message in self._in_flight]
        self._jobs = [job for job in left if job.at > due]
        self._wait()
        self._ask([job for job in left if job.at <= due])

    def close(self) -> None:
        self._timer.close()
        self._jobs.clear()
