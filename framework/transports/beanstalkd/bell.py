"""A connection that waits for one job: it rings when a tube that was empty has one, and keeps that one until it is settled.

A blocking reserve stops everything behind it on its connection, so whoever holds a job does not reserve: it can be touched, and
DEADLINE_SOON cannot come.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from framework.errors import ProtocolError
from framework.transports.beanstalkd import hold as _hold
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.dial import Line
from framework.transports.beanstalkd.hold import Hold
from framework.transports.beanstalkd.pipe import Pipe
from framework.transports.beanstalkd.rescue import Touch

WAIT = 30
"""Seconds after which a reserve without a job is answered with TIMED_OUT and sent again: so a dead peer is noticed."""
RESERVE = wire.reserve_with_timeout(WAIT)
_RESERVE = object()
"""What is awaited of a bell: this, the answer to its reserve; that of a verb with its message; or None: it changes nothing."""


class Owner(_hold.Owner, Protocol):
    """What a bell tells. All of it is called on the hub."""

    def rang(self, bell: Bell, hold: Hold) -> None:
        """It has a job."""

    def silent(self, bell: Bell) -> None:
        """Its reserve ended without one."""

    def gone(self, bell: Bell, error: Exception) -> None:
        """Its connection ended."""


class Bell:
    """Made from a Line that watches its tube."""

    def __init__(self, line: Line, owner: Owner) -> None:
        self.hold: Hold | None = None
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

    def settle(self, hold: Hold, again: bool) -> None:
        """Say how its job ended, and in the same send, with ``again``, reserve the next."""
        assert hold.message is not None
        self.hold = None
        self.reserving = again
        asked = (hold.verb, hold.message)
        if again:
            self._send(hold.command() + RESERVE, [asked, _RESERVE])
        else:
            self._send(hold.command(), [asked])

    def touch(self, hold: Hold) -> None:
        assert hold.message is not None
        self._send(wire.touch(hold.job), [("touch", hold.message)])

    def ping(self) -> None:
        """Say something while it keeps a job of which nothing is said any more. beanstalkd may lose the timer of a connection
        (#262, #380; on 1.12 two times in five), and then lets its jobs run out only when it hears from it again."""
        if self.hold is not None and not self.pipe.awaited:
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
        return now - self.since > waits + _hold.GRACE

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
                _hold.check(self._owner, reply, *asked)

    def _reserved(self, reply: wire.Reply) -> None:
        if reply.word == "RESERVED":
            self.hold = Hold(reply.number, reply.data, self, self.pipe.came)
            self._owner.rang(self, self.hold)
        elif reply.word in ("TIMED_OUT", "DEADLINE_SOON"):
            self._owner.silent(self)
        else:
            raise _hold.strange(reply, "reserve")

    def _ended(self, error: Exception) -> None:
        self._owner.gone(self, error)
