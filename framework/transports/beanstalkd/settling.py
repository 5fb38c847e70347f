"""Keeps how jobs ended until it can be sent, sends it on the connection that holds each job, and counts it. A count is taken
back where the server refused."""

from __future__ import annotations

from framework.transports.beanstalkd.attempts import Attempts
from framework.transports.beanstalkd.log_space import LogSpace
from framework.transports.beanstalkd.pacing import Pacing
from framework.transports.beanstalkd.poller import Poller
from framework.transports.beanstalkd.reserved_job import ReservedJob
from framework.transports.beanstalkd.waiters import Waiter, WaiterPool
from framework.transports.contract import Tally


class Settling:
    """Of one connection."""

    def __init__(
        self, tally: Tally, *, poller: Poller, waiters: WaiterPool, attempts: Attempts, pacing: Pacing, log_space: LogSpace
    ) -> None:  # fmt: skip
        self.settled: list[ReservedJob] = []
        """To be told in the next send."""
        self.late: dict[ReservedJob, None] = {}
        """Jobs to release as soon as their priority is known, or there is room."""
        self._tally = tally
        self._poller = poller
        self._waiters = waiters
        self._attempts = attempts
        self._pacing = pacing
        self._log_space = log_space

    def __len__(self) -> int:
        return len(self.settled) + len(self.late)

    def when_known(self, job: ReservedJob) -> None:
        """A release and a bury give back the job's priority."""
        if job.priority >= 0 and job not in self._log_space.kept:
            self.settled.append(job)
        else:
            self.late[job] = None
            if job.priority < 0 and not job.asked:
                self._attempts.asking.append(job)

    def kept_long_enough(self, jobs: list[ReservedJob]) -> None:
        for job in jobs:
            if job in self.late and job.priority >= 0:
                self._pop_late(job)
                self.settled.append(job)

    def known(self, job: ReservedJob) -> bool:
        """All that can be known of ``job`` is. False: it was to be told how that ended, and the server has no such job."""
        known = job.priority >= 0
        if job not in self.late or (known and job in self._log_space.kept):
            return True
        self._pop_late(job)
        if known:
            self.settled.append(job)
        return known

    def _pop_late(self, job: ReservedJob) -> None:
        del self.late[job]
        self._log_space.kept.pop(job, None)

    def tell(self) -> None:
        """Have all that is ``settled`` told in the next send."""
        settled, self.settled = self.settled, []
        done = [job for job in settled if job.keeper is self._poller and job.verb == "delete"]
        if done:
            self._poller.finish(done)
        self._tally.finished += len(done)
        if len(done) < len(settled):
            self._tell_others([job for job in settled if job.keeper is not self._poller or job.verb != "delete"])

    def _tell_others(self, settled: list[ReservedJob]) -> None:
        room = self._pacing.room if self._poller.dry else 0  # a waiter in a flood would cost what the poller saves
        for job in settled:
            if job.verb == "release":
                self._tally.requeued += 1
                if self._log_space.full:
                    job.delay = 0
            else:
                self._tally.finished += 1
            if isinstance(job.keeper, Waiter):
                room -= self._waiters.settle(job.keeper, job, again=room > 0)
            else:
                self._poller.settle(job)

    # --- in vain -------------------------------------------------------------------------------------------

    def refused(self, verb: str) -> None:
        """The server refused a settlement that was counted already."""
        if verb == "release":
            self._tally.requeued -= 1
        else:
            self._tally.finished -= 1

    def cut(self, lines: list[bytes]) -> None:
        """Commands that were counted when they were handed over, and that the socket did not take whole."""
        released = sum(line.startswith(b"release ") for line in lines)
        finished = sum(line.startswith((b"delete ", b"bury ")) for line in lines)
        self._tally.requeued -= released
        self._tally.finished -= finished
        self._tally.lease_lost += released + finished

    def lose(self, job: ReservedJob) -> None:
        """The connection that held the job has ended."""
        if job in self.settled:
            self.settled.remove(job)
            self._tally.lease_lost += 1
        elif job in self.late:
            self._pop_late(job)
            self._tally.lease_lost += 1

    def clear(self) -> None:
        self._tally.lease_lost += len(self)
        self.settled.clear()
        self.late.clear()
