"""What is known of the jobs that came, and which of them can be delivered: how often each was reserved before, and its lease.

RESERVED shows a job's id and body only. How often it was reserved, which priority a release must give back, when it was put and
how long its lease is must be asked for, at half the price of the job itself. So of the jobs that one poll got, the first is asked
for, before any is delivered. If that was never reserved before, and never delayed, neither were those behind it with higher ids:
the server hands out the lowest id first, so whoever had one of them before would have had the first one before that. (Between two
answers of one poll another worker may take one of them and die; the count of that one is then one too low, once.) That holds
among jobs of one priority: a more urgent one was had before, and may be due again between two answers. So once two priorities
were seen all are asked for; and so are those behind a first job that is not fresh, every job that is in flight for a while, and
what a bell got.
"""

from __future__ import annotations

from time import time_ns
from typing import Protocol

from framework.message import Message
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.desk import Poll
from framework.transports.beanstalkd.hold import Hold


class Owner(Protocol):
    """What an intake tells, and asks for. All of it is called on the hub."""

    def message(self, hold: Hold, attempts: int, born: int) -> Message:
        """What is delivered of a job that was put at ``born``, in nanoseconds since 1970."""

    def lease(self, ttr: int) -> None:
        """A job that is ours, or will be, has a time to run of so many seconds."""

    def asked(self, hold: Hold) -> None:
        """All that can be known of ``hold`` is."""

    def free(self, hold: Hold) -> None:
        """The job of ``hold`` is no longer reserved by this connection, and was never delivered."""


class Intake:
    """Of one connection."""

    def __init__(self, owner: Owner) -> None:
        self.asking: list[Hold] = []
        """Jobs to ask for in the next send."""
        self.arrived: list[Hold] = []
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

    def reserved(self, poll: Poll, hold: Hold) -> None:
        """``poll`` got a job."""
        if poll.fresh and hold.job > poll.top and not self._mixed:  # nearly every one in a flood
            self._arrive(hold, 1, poll.born)
            return
        self._unknown += 1
        if not poll.top:
            poll.top = hold.job
            hold.poll = poll
            self.asking.append(hold)
        elif poll.fresh is None:
            poll.waiting.append(hold)
        else:
            self.asking.append(hold)

    def rang(self, hold: Hold) -> None:
        """A bell got a job."""
        self._unknown += 1
        self.asking.append(hold)

    def known(self, hold: Hold, state: wire.JobState | None) -> None:
        """What was asked of ``hold``; None: the server knows no such job."""
        if hold.verb == "lost":
            self._unknown -= 1
            return
        born = 0
        if state is not None:
            born = time_ns() - state.age * 1_000_000_000
            hold.priority, hold.ttr = state.priority, state.ttr
            self._compare(state.priority)
            self._owner.lease(state.ttr)
        if hold.message is None:
            self._meet(hold, state, born)
        elif state is not None:
            hold.message.attempts, hold.message.timestamp = state.reserves, born
        self._owner.asked(hold)

    def _compare(self, priority: int) -> None:
        if self._priority not in (-1, priority):
            self._mixed = True
        self._priority = priority

    def _meet(self, hold: Hold, state: wire.JobState | None, born: int) -> None:
        """``hold`` can be delivered now, and perhaps what came behind it."""
        self._unknown -= 1
        if state is not None:
            self._arrive(hold, state.reserves, born)
        else:  # its time ran out, and somebody deleted it
            self._owner.free(hold)
        poll = hold.poll
        if isinstance(poll, Poll):
            poll.born = born
            poll.fresh = state is not None and state.reserves == 1 and state.delay == 0 and not self._mixed
            self._judge(poll)

    def _judge(self, poll: Poll) -> None:
        """Everything is known of the first job of ``poll``: what came behind it."""
        for hold in poll.waiting:
            if poll.fresh and hold.job > poll.top and not self._mixed:
                self._unknown -= 1
                self._arrive(hold, 1, poll.born)
            else:
                self.asking.append(hold)
        poll.waiting.clear()

    def _arrive(self, hold: Hold, attempts: int, born: int) -> None:
        hold.message = self._owner.message(hold, attempts, born)
        hold.body = b""
        self.arrived.append(hold)

    def clear(self) -> None:
        self.asking.clear()
        self.arrived.clear()
