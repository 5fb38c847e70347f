"""One connection for one job at a time: it reserves, holds the job while its handler runs, and says how it ended.

A blocking reserve stops everything behind it on its connection, so whoever holds a job does not reserve: it can be touched, and
DEADLINE_SOON cannot come. Which seats reserve, and what a job is to the engine, is ``connection``'s.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import Protocol

from framework.errors import BrokerError, ProtocolError
from framework.message import Message
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.dial import Line
from framework.transports.beanstalkd.pipe import Pipe

WAIT = 30
"""Seconds after which an idle reserve is answered with TIMED_OUT and sent again: so a dead peer is noticed."""
GRACE = 10.0
"""Seconds that an answer may take."""
RESERVE = wire.reserve_with_timeout(WAIT)
_SETTLES = {"delete": "DELETED", "release": "RELEASED", "bury": "BURIED", "touch": "TOUCHED"}


class Owner(Protocol):
    """What a seat tells. All of it is called on the hub."""

    def reserved(self, seat: Seat) -> None:
        """It holds the job ``seat.job``, ``seat.body``."""

    def came_back(self, seat: Seat) -> None:
        """Its reserve ended without a job."""

    def refused(self, seat: Seat, verb: str, message: Message) -> None:
        """The server does not know ``message`` as this seat's any more."""

    def buried(self, seat: Seat, message: Message) -> None:
        """The server had no memory to release ``message``: it is buried."""

    def gone(self, seat: Seat, error: Exception) -> None:
        """Its connection ended."""


class Seat:
    """Made from a Line that watches its tube."""

    __slots__ = (
        "_awaited", "_owner", "body", "job", "message", "pipe", "priority", "reserving", "retired", "settling", "since", "verb",
    )  # fmt: skip

    def __init__(self, line: Line, owner: Owner) -> None:
        self.job = 0
        self.body = b""
        self.message: Message | None = None
        """What it holds, once it has been delivered and until it is settled."""
        self.priority = 0
        self.settling = b""
        self.verb = ""
        self.reserving = False
        self.retired = False
        """It said that it would send no more, and waits for the end of the stream."""
        self.since = monotonic()
        """When it last reserved or was told something."""
        self._awaited: deque[tuple[str, Message]] = deque()
        self._owner = owner
        self.pipe = Pipe(line, self._take, self._ended)

    def reserve(self) -> None:
        self.reserving = True
        self.since = monotonic()
        self.pipe.send(RESERVE)

    def settle(self, again: bool) -> None:
        """Send what ``verb`` and ``settling`` say of its message, and in the same send, with ``again``, the next reserve."""
        message = self.message
        assert message is not None
        self._awaited.append((self.verb, message))
        self.message = None
        self.since = monotonic()
        self.reserving = again
        self.pipe.send(self.settling + RESERVE if again else self.settling)

    def touch(self, message: Message) -> None:
        self._awaited.append(("touch", message))
        self.since = monotonic()
        self.pipe.send(wire.touch(self.job))

    def retire(self) -> None:
        """End it without losing a job: a waiting reserve is answered at once, then the server closes."""
        self.retired = True
        self.since = monotonic()
        self.pipe.shut()

    @property
    def unanswered(self) -> int:
        """How many commands, reserves not counted, wait for their answers."""
        return len(self._awaited)

    @property
    def cut_short(self) -> str:
        """The verb of a settlement that the socket has not taken whole."""
        verb = self._awaited[-1][0] if self._awaited else "touch"
        return verb if verb != "touch" and self.pipe.unsent > (len(RESERVE) if self.reserving else 0) else ""

    def overdue(self, now: float) -> bool:
        """The server owes an answer for too long. (One that has just come may be unread: the hub may have been blocked.)"""
        waits = WAIT if self.reserving and not (self._awaited or self.retired) else 0.0
        return (self.reserving or self.retired or bool(self._awaited)) and now - self.since > waits + GRACE

    def _take(self, replies: list[wire.Reply]) -> None:
        for reply in replies:
            if self._awaited:
                self._answered(reply, *self._awaited.popleft())
            elif not self.reserving:
                raise ProtocolError(f"beanstalkd {self.pipe.node} sent {reply.word}, which nothing asked for")
            elif reply.word == "RESERVED":
                self.reserving = False
                self.job, self.body = reply.number, reply.data
                if not self.retired:  # of one that has said that it goes, the job is ready again when the connection ends
                    self._owner.reserved(self)
            elif reply.word in ("TIMED_OUT", "DEADLINE_SOON"):
                self.reserving = False
                if not self.retired:
                    self._owner.came_back(self)
            else:
                raise self._strange(reply, "reserve")

    def _answered(self, reply: wire.Reply, verb: str, message: Message) -> None:
        if reply.word == _SETTLES[verb]:
            return
        if reply.word == "NOT_FOUND":
            self._owner.refused(self, verb, message)
        elif reply.word == "BURIED":
            self._owner.buried(self, message)
        else:
            raise self._strange(reply, verb)

    def _strange(self, reply: wire.Reply, verb: str) -> Exception:
        if reply.word in wire.ERRORS:
            return BrokerError(reply.word, f"from beanstalkd {self.pipe.node} to {verb}")
        return ProtocolError(f"beanstalkd {self.pipe.node} answered {verb} with {reply.word}")

    def _ended(self, error: Exception) -> None:
        self._owner.gone(self, error)
