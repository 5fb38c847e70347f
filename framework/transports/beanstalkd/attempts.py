"""What is known of the jobs that came, and which of them can be delivered: how often each was reserved before, and its lease.

RESERVED shows a job's id and body only. How often it was reserved, which priority a release must give back, when it was put and
how long its lease is must be asked for, at half the price of the job itself. So of the jobs that one poll got, the first is asked
for, before any is delivered. If that was never reserved before, and never delayed, neither were those behind it with higher ids:
the server hands out the lowest id first, so whoever had one of them before would have had the first one before that. (Between two
answers of one poll another worker may take one of them and die; the count of that one is then one too low, once.) That holds
among jobs of one priority: a more urgent one was had before, and may be due again between two answers. So once two priorities
were seen all are asked for; and so are those behind a first job that is not fresh, every job that is in flight for a while, and
what a waiter got.
"""

from __future__ import annotations

from time import time_ns
from typing import Protocol

from framework.message import Message
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.poller import Poll
from framework.transports.beanstalkd.reserved_job import ReservedJob


class Owner(Protocol):
    """What it tells, and asks for. All of it is called on the hub."""

    def message(self, job: ReservedJob, attempts: int, born: int) -> Message:
        """What is delivered of a job that was put at ``born``, in nanoseconds since 1970."""

    def lease(self, ttr: int) -> None:
        """A job that is ours, or will be, has a time to run of so many seconds."""

    def asked(self, job: ReservedJob) -> None:
        """All that can be known of ``job`` is."""

    def free(self, job: ReservedJob) -> None:
        """``job`` is no longer reserved by this connection, and was never delivered."""


class Attempts:
    """Of one connection."""

    def __init__(self, owner: Owner) -> None:
        self.asking: list[ReservedJob] = []
        """Jobs to ask for in the next send."""
        self.arrived: list[ReservedJob] = []
        """Jobs to deliver, the first one first."""
        self._priority = -1
        """That of the jobs that were asked for; -1 before the first."""
        self._mixed = False
        """There were two: no job vouches for another any more."""
        self._unknown = 0
        """Jobs that are ours, and of which something is to be known before they are delivered."""
        self._owner = owner

    @property
    def undelivered(self) -> int:
        """How many jobs are ours and not in flight."""
        return self._unknown + len(self.arrived)

    def reserved(self, poll: Poll, job: ReservedJob) -> None:
        """``poll`` got a job."""
        if poll.fresh and job.number > poll.top and not self._mixed:  # nearly every one in a flood
            self._arrive(job, 1, poll.born)
            return
        self._unknown += 1
        if not poll.top:
            poll.top = job.number
            job.poll = poll
            self.asking.append(job)
        elif poll.fresh is None:
            poll.waiting.append(job)
        else:
            self.asking.append(job)

    def got(self, job: ReservedJob) -> None:
        """A waiter got a job."""
        self._unknown += 1
        self.asking.append(job)

    def known(self, job: ReservedJob, state: wire.JobState | None) -> None:
        """What was asked of ``job``; None: the server knows no such job."""
        if job.verb == "lost":
            self._unknown -= 1
            return
        born = 0
        if state is not None:
            born = time_ns() - state.age * 1_000_000_000
            job.priority, job.ttr = state.priority, state.ttr
            self._compare(state.priority)
            self._owner.lease(state.ttr)
        if job.message is None:
            self._meet(job, state, born)
        elif state is not None:
            job.message.attempts, job.message.timestamp = state.reserves, born
        self._owner.asked(job)

    def _compare(self, priority: int) -> None:
        if self._priority not in (-1, priority):
            self._mixed = True
        self._priority = priority

    def _meet(self, job: ReservedJob, state: wire.JobState | None, born: int) -> None:
        """``job`` can be delivered now, and perhaps what came behind it."""
        self._unknown -= 1
        if state is not None:
            self._arrive(job, state.reserves, born)
        else:  # its time ran out, and somebody deleted it
            self._owner.free(job)
        poll = job.poll
        if isinstance(poll, Poll):
            poll.born = born
            poll.fresh = state is not None and state.reserves == 1 and state.delay == 0
            self._judge(poll)

    def _judge(self, poll: Poll) -> None:
        """Everything is known of the first job of ``poll``: what came behind it."""
        for job in poll.waiting:
            if poll.fresh and job.number > poll.top and not self._mixed:
                self._unknown -= 1
                self._arrive(job, 1, poll.born)
            else:
                self.asking.append(job)
        poll.waiting.clear()

    def _arrive(self, job: ReservedJob, attempts: int, born: int) -> None:
        job.message = self._owner.message(job, attempts, born)
        self.arrived.append(job)

    def clear(self) -> None:
        self.asking.clear()
        self.arrived.clear()
