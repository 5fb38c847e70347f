"""A connection that waits for one job: it rings when a tube that was empty has one, and keeps that one until it is settled.

A blocking reserve stops everything behind it on its connection, so whoever holds a job does not reserve: it can be touched, and
DEADLINE_SOON cannot come.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from framework.errors import ProtocolError
from framework.transports.beanstalkd import reserved_job, wire
from framework.transports.beanstalkd.dial import Line
from framework.transports.beanstalkd.pipe import Pipe
from framework.transports.beanstalkd.rescue import Touch
from framework.transports.beanstalkd.reserved_job import ReservedJob

WAIT = 30
"""Seconds after which a reserve without a job is answered with TIMED_OUT and sent again: so a dead peer is noticed."""
RESERVE = wire.reserve_with_timeout(WAIT)
_RESERVE = object()
"""What is awaited of a bell: this, the answer to its reserve; that of a verb with its message; or None: it changes nothing."""


class Owner(reserved_job.Owner, Protocol):
    """What a bell tells. All of it is called on the hub."""

    def rang(self, bell: Bell, job: ReservedJob) -> None:
        """It has a job."""

    def silent(self, bell: Bell) -> None:
        """Its reserve ended without one."""

    def gone(self, bell: Bell, error: Exception) -> None:
        """Its connection ended."""


class Bell:
    """Made from a Line that watches its tube."""

    def __init__(self, line: Line, owner: Owner) -> None:
        self.job: ReservedJob | None = None
        """The job that it keeps, until it is settled or lost."""
        self.reserving = False
        self.retired = False
        """It said that it would send no more, and waits for the end of the stream."""
        self.since = monotonic()
        """When it was last told something."""
        self._owner = owner
        self.pipe = Pipe(line, self._take, self._ended)

    def reserve(self) -> None:
        self.reserving = True
        self._send(RESERVE, [_RESERVE])

    def settle(self, job: ReservedJob, again: bool) -> None:
        """Say how its job ended, and in the same send, with ``again``, reserve the next."""
        assert job.message is not None
        self.job = None
        self.reserving = again
        asked = (job.verb, job.message)
        if again:
            self._send(job.command() + RESERVE, [asked, _RESERVE])
        else:
            self._send(job.command(), [asked])

    def touch(self, job: ReservedJob) -> None:
        assert job.message is not None
        self._send(wire.touch(job.number), [("touch", job.message)])

    def ping(self) -> None:
        """Say something while it keeps a job of which nothing is said any more. beanstalkd may lose the timer of a connection
        (#262, #380; on 1.12 two times in five), and then lets its jobs run out only when it hears from it again."""
        if self.job is not None and not self.pipe.awaited:
            self._send(wire.LIST_TUBE_USED, [None])

    def rescue(self, touches: Sequence[Touch]) -> None:
        """Keep its job, or the one that it is given just now; from another thread. Nothing may be said behind a reserve."""
        if not self.retired:
            self.pipe.rescue(lambda: () if self.reserving else touches)

    def retire(self) -> None:
        """End it without losing a job: the server answers a waiting reserve at once, and then closes."""
        self.retired = True
        self.since = monotonic()
        self.pipe.shut()

    @property
    def unanswered(self) -> int:
        """How many commands, reserves not counted, wait for their answers."""
        return len(self.pipe.awaited) - self.reserving

    def overdue(self, now: float) -> bool:
        """An answer of the server is overdue. (It may be unread: the hub may have been blocked.)"""
        if not (self.retired or self.pipe.awaited):
            return False
        waits = WAIT if self.reserving and not (self.unanswered or self.retired) else 0.0
        return now - self.since > waits + reserved_job.GRACE

    def _send(self, commands: bytes, asked: Sequence[object]) -> None:
        self.since = monotonic()
        self.pipe.send(commands, asked)

    def _take(self, replies: list[wire.Reply]) -> None:
        for reply in replies:
            if not self.pipe.awaited:
                raise ProtocolError(f"beanstalkd {self.pipe.node} sent {reply.word}, which nothing asked for")
            asked = self.pipe.awaited.popleft()
            if asked is _RESERVE:
                self.reserving = False
                if not self.retired:  # of one that has said that it goes, the job is ready again when the connection ends
                    self._reserved(reply)
            elif isinstance(asked, tuple):
                reserved_job.check(self._owner, reply, *asked)

    def _reserved(self, reply: wire.Reply) -> None:
        if reply.word == "RESERVED":
            self.job = ReservedJob(reply.number, reply.data, self, self.pipe.came)
            self._owner.rang(self, self.job)
        elif reply.word in ("TIMED_OUT", "DEADLINE_SOON"):
            self._owner.silent(self)
        else:
            raise reserved_job.strange(reply, "reserve")

    def _ended(self, error: Exception) -> None:
        self._owner.gone(self, error)
