"""A job that is ours for now: what RESERVED said of it, and what ``stats-job`` adds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from framework.errors import BrokerError, ProtocolError
from framework.message import Message
from framework.transports.beanstalkd import wire

GRACE = 10.0
"""Seconds that an answer may take."""
SETTLED = {"delete": "DELETED", "release": "RELEASED", "bury": "BURIED", "touch": "TOUCHED"}
"""Verb -> what the server says when it has done so."""
_NO_ROOM = (("release", "OUT_OF_MEMORY"), ("bury", "INTERNAL_ERROR"))


class ReservedJob:
    """One reserved job, from its RESERVED until its handler has settled it."""

    __slots__ = ("asked", "at", "body", "delay", "keeper", "message", "number", "poll", "priority", "ttr", "verb")

    def __init__(self, number: int, body: bytes, keeper: Keeper, at: float) -> None:
        self.number = number
        self.body = body
        self.keeper = keeper
        self.at = at
        """When it was reserved, or touched last before it came to the hub, monotonic."""
        self.asked = False
        """Its statistics were asked for."""
        self.priority = -1
        """What a release must give back; -1 until the statistics are known."""
        self.ttr = 0
        """Its time to run in seconds; 0 until then."""
        self.message: Message | None = None
        self.verb = ""
        """How it ended; empty while it is in flight, "lost" when its connection ended before it was delivered."""
        self.delay = 0
        self.poll: object = None
        """The poll that it was the first job of."""

    def command(self) -> bytes:
        """What tells the server how it ended."""
        if self.verb == "delete":
            return b"delete %d\r\n" % self.number
        if self.verb == "release":
            return wire.release(self.number, self.priority, self.delay)
        return wire.bury(self.number, self.priority)


class Keeper(Protocol):
    """The connection to the server that reserved a job, the only one that may settle it."""

    def touch(self, job: ReservedJob) -> None: ...

    def rescue(self, touches: Sequence[tuple[int, object]]) -> None: ...


class Owner(Protocol):
    """What a poller and a waiter tell. All of it is called on the hub."""

    def refused(self, verb: str, message: Message) -> None:
        """The server does not know ``message`` as ours any more."""

    def buried(self, message: Message) -> None:
        """The server had no memory to release ``message``: it is buried."""

    def stranded(self, verb: str, message: Message) -> None:
        """The server had no room in its log to do so, and has let go of ``message`` all the same."""


def check(owner: Owner, reply: wire.Reply, verb: str, message: Message) -> None:
    """Tell ``owner`` what is wrong in the answer to a settlement or a touch. Raises BrokerError, ProtocolError."""
    if reply.word == SETTLED[verb]:
        return
    if reply.word == "NOT_FOUND":
        owner.refused(verb, message)
    elif reply.word == "BURIED":
        owner.buried(message)
    elif (verb, reply.word) in _NO_ROOM:
        owner.stranded(verb, message)
    else:
        raise strange(reply, verb)


def strange(reply: wire.Reply, verb: str) -> Exception:
    """The error for an answer that was not expected."""
    if reply.word in wire.ERRORS:
        return BrokerError(reply.word, f"in answer to {verb}")
    return ProtocolError(f"not a beanstalkd's answer to {verb}: {reply.word}")


def whole_seconds(delay: float, least: int) -> int:
    """``delay`` rounded up, ``least`` at least, within what beanstalkd takes."""
    return max(math.ceil(min(delay, wire.MAX_NUMBER)), least)
