"""Runs the streams until they are done, one of them ends, or a signal comes."""

from __future__ import annotations

import time
from collections.abc import Callable

from workers.api_requests.stream.queries import Failed, Queries
from workers.api_requests.stream.stopping import Stopping
from workers.api_requests.stream.streams import Job

_POLL = 0.2  # seconds
_OFTEN = 10.0  # seconds after which is told again how many lines wait
_PATIENCE = 60.0  # seconds without a new line before --until gives up


class Lookout:
    """Waits for the queries, tells how far they are, and sees when one ends or a signal comes."""

    def __init__(self, job: Job, tell: Callable[..., None], stopping: Stopping) -> None:
        self._job = job
        self._tell = tell
        self._told: dict[str, dict[str, int]] = {}
        self._tell_again = 0.0
        self._stopping = stopping
        self._moved = time.monotonic()

    @property
    def asked(self) -> bool:
        """Whether a signal asked for the end."""
        return self._stopping.asked

    def until(self, queries: Queries, finished: Callable[[], bool], patience: float | None) -> bool:
        """Whether ``finished`` came before a signal.

        Raises Failed when a query ends, or nothing moves for ``patience`` seconds.
        """
        while not self._stopping.asked:
            self._report()
            self._job.evidence.tend()
            if finished():
                self._report()  # what was done since the last word
                return True
            queries.revive()
            if any(query.status["isDataAvailable"] for query in queries.running()):
                self._moved = time.monotonic()
            if patience is not None and time.monotonic() - self._moved > patience:
                raise Failed(f"nothing has arrived for {patience:.0f} s: the channels have done {self._job.done()}")
            time.sleep(_POLL)
        return False

    def _report(self) -> None:
        done, now = self._job.done(), time.monotonic()
        if done != self._told:
            self._told, self._moved = done, now
        elif now < self._tell_again:
            return
        behind = self._job.behind()
        self._tell_again = now + _OFTEN
        if self._moved == now or behind:
            waiting = {name: {"rows": one.rows, "seconds": round(one.seconds, 1)} for name, one in behind.items()}
            self._tell("lines", done=done, waiting=waiting, late=self._job.late())


def run(
    job: Job, lookout: Lookout, target: Callable[[], int | None] | None, every: float | None, *, available_now: bool = False
) -> None:
    """The whole job in a session that is up, until it is done or a signal comes. Raises Failed.

    ``target``: how many lines there will be; None to follow. ``available_now``: done when what is in the spools now is.
    """
    queries = None
    try:
        queries = Queries(lambda name: job.start(name, every, available_now=available_now), may_end=available_now)
        finished, patience = _end(job, queries, target, available_now)
        reached = lookout.until(queries, finished, patience)
    finally:
        job.stopping()
        if queries is not None:
            queries.stop()
        job.wait()
    job.evidence.finish()
    if not reached:
        return
    job.check_output()
    if not job.judges_as_it_goes:
        job.evidence.judge()
    if not job.sender.flush(_PATIENCE, lambda: lookout.asked) and not lookout.asked:
        raise Failed(f"suspects wait to be published, and the next run will try again: {job.sender.trouble}")


def _end(
    job: Job, queries: Queries, target: Callable[[], int | None] | None, available_now: bool
) -> tuple[Callable[[], bool], float | None]:
    """What is waited for, and how many seconds without a new line."""
    if available_now:
        return queries.ended, None
    if target is None:
        return lambda: False, None
    return lambda: (wanted := target()) is not None and job.least() >= wanted, _PATIENCE
