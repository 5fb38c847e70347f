"""Whether a server's log has room for a release with a delay, and what is done with jobs that failed while it has none.

Without room beanstalkd answers OUT_OF_MEMORY when it has let go of the job already: that is reserved by nobody then, until the
server is started again. A release without a delay is not logged. It would make the job the very next one, so it waits here for a
moment. Whether there is room again is asked by a put, which the server refuses before it does anything.
"""

from __future__ import annotations

from collections.abc import Callable

from gevent.hub import get_hub

from framework.observe import hublog
from framework.transports.beanstalkd.reserved_job import ReservedJob

log = hublog.get(__name__)

WAIT = 1.0
"""Seconds that a failed job is kept, or a fourth of its lease: nobody touches it meanwhile."""


class LogSpace:
    """Of one connection."""

    def __init__(self, node: str, let_go: Callable[[list[ReservedJob]], None], guarded: Callable[..., None]) -> None:
        """``let_go`` is called with jobs that were kept long enough. ``guarded(work)`` runs the work of a timer, and catches
        what that raises."""
        self.full = False
        self.kept: dict[ReservedJob, None] = {}
        self._node = node
        self._let_go = let_go
        self._guarded = guarded
        self._timer = get_hub().loop.timer(WAIT)

    def none(self, number: int) -> None:
        """A release of job ``number`` found no room."""
        log.error(
            "beanstalkd %s has no room in its log to release job %d, and keeps it reserved by nobody until it is started again; "
            "until there is room, failed jobs are released without a delay", self._node, number,
        )  # fmt: skip
        self.full = True

    def found(self) -> None:
        """There is room."""
        if self.full:
            log.warning("beanstalkd %s has room in its log again", self._node)
            self.full = False
            self.release()

    def keep(self, job: ReservedJob, lease: float) -> None:
        """Until ``WAIT`` has passed for the first of those that are kept."""
        self.kept[job] = None
        if not self._timer.active:
            self._timer.close()
            self._timer = get_hub().loop.timer(min(WAIT, lease / 4))
            self._timer.start(self._guarded, self.release)

    def release(self) -> None:
        """Let go of all that is kept."""
        self._timer.stop()
        kept = list(self.kept)
        self.kept.clear()
        if kept:
            self._let_go(kept)

    def close(self) -> None:
        self._timer.close()
