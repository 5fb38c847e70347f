"""What JetStream is reached by: the session of a client, or a peer's routes. What each of its users needs of it.

Streams, pulls, leases and publishes know no socket: they ask, subscribe and publish here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from framework.errors import FrameworkError
from framework.transports.contract import Rescuable
from framework.transports.nats import wire
from framework.transports.nats.commands import Commands
from framework.transports.nats.outbox import Owner, Said


class Asking(Protocol):
    """Who asks JetStream's administration."""

    @property
    def server(self) -> str:
        """For words: whom it is connected to."""

    @property
    def info(self) -> wire.Info:
        """What that says of itself; of several servers what all of them can do."""

    @property
    def patience(self) -> float:
        """Seconds that an answer may take."""

    def ask(self, to: bytes, body: bytes, timeout: float) -> wire.Msg:
        """Publish a request and wait for its answer; blocks its greenlet. Raises BrokerUnreachable, BrokerError."""


class Proving(Protocol):
    """Who counts leases."""

    @property
    def proven(self) -> float:
        """The server has read all that was collected before this moment."""

    @property
    def heeded(self) -> float:
        """As ``proven``, but for what it may have dropped, as its JetStream had ended before."""

    def distrust(self, *, ends: bool) -> None:
        """Its JetStream ends, it says, or else seems so: a server that stops reads on for seconds, and answers PINGs."""


class Publishing(Asking, Protocol):
    """Who publishes. ``poll`` reads what has come, where the hub does not run between two uses."""

    leaving: bool
    acks: bytes

    @property
    def error(self) -> Exception | None:
        """Why it has ended."""

    @property
    def heard_at(self) -> float: ...

    def listen(self, inbox: bytes, owner: Owner) -> None:
        """All that comes one word below ``inbox`` is for ``owner``."""

    def publish(self, to: bytes, body: bytes, reply: bytes, headers: bytes) -> object:
        """To be answered at ``reply``; with status 503 where nobody takes it. Returns what ``astray`` is to be told."""

    def astray(self, to: bytes, went: object) -> bool:
        """Whoever was to answer a publish has gone since."""

    def poll(self) -> None: ...

    def end(self, error: FrameworkError) -> None: ...

    def shut(self) -> None: ...

    def fileno(self) -> int: ...


class Carrier(Asking, Proving, Protocol):
    """What a connection pulls by. Of no more use once ``error`` is set."""

    leaving: bool
    inbox: bytes

    @property
    def relays(self) -> bool:
        """What it reads goes on to the server that leads, which may be another."""

    @property
    def error(self) -> Exception | None:
        """Why it has ended."""

    @property
    def commands(self) -> Commands: ...

    @property
    def rescuable(self) -> Rescuable: ...

    def sid(self, owner: Owner) -> int:
        """A number for a subscription of ``owner``, until ``drop``."""

    def drop(self, sid: int) -> None: ...

    def attend(self, owner: Owner, subjects: Collection[bytes]) -> None:
        """``owner`` is told of the session's end, and hears what a client may hear at ``subjects``, until it leaves."""

    @property
    def away(self) -> str:
        """Why nobody is there of whom messages could come; empty: somebody is."""

    def doubt(self, limit: float) -> None:
        """Whoever listens has not confirmed for ``limit`` seconds what was said: it ends, where another can be dialled."""

    def leave(self, owner: Owner) -> list[Said]:
        """It has ended. Returns what it has said and is not known to have been sent."""

    def wants_to_speak(self, owner: Owner) -> None:
        """Collect from it in this turn of the hub."""

    def ping(self, then: Callable[[], None] | None = None) -> None:
        """``then`` is called when the server has read all that is said in this turn."""

    def prove(self) -> None:
        """Have ``proven`` tell when the server has read what is collected in this turn."""

    def deserted(self, now: float) -> bool:
        """No server leads what is pulled from, and has not for long."""

    def rescued(self) -> None:
        """What was done in the hub's place is to be known now."""
