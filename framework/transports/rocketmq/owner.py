"""Who asks on a session: what it must be able to do, and what is kept of a request that is not answered yet. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import monotonic
from typing import Protocol

import msgspec

from framework.errors import AlreadySettled, FrameworkError
from framework.message import Message
from framework.transports.rescuable_socket import RescuableSocket
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.wire.frames import Frame

Then = Callable[[Frame | FrameworkError, float], None]
"""Gets the answer, or why there is none, and when it was read (monotonic)."""


class Owner(Protocol):
    """Whoever subscribes. Called on the hub but for ``keep``."""

    subscription: Subscription

    @property
    def shown(self) -> bool:
        """Whether heartbeats say that it subscribes."""

    @property
    def has_queues(self) -> bool:
        """Whether they say that it may still hold a queue. What they said once, and say no more, has the broker close the
        connection after two minutes."""

    def turn(self) -> None:
        """Before what it wants to say is collected, once in a turn."""

    def collect(self) -> None:
        """Say what it has to say, by ``Session.put``; the socket has room."""

    def arrive(self) -> None:
        """What it said by ``Session.brings`` that it has."""

    def keep(self, now: float, expired: Collection[Message]) -> None:
        """In another native thread: as ``collect``, while the hub is blocked; only what cannot wait."""

    def resumed(self) -> None:
        """The hub turns again after ``keep``."""

    def others_changed(self, group: str) -> None:
        """The broker says that somebody has joined or left ``group``."""

    def lost(self, error: FrameworkError) -> None:
        """The session has ended, or its server is about to stop and takes no further requests."""


class Unleased:
    """An owner whose messages have no lease: the session's heartbeats keep its queues."""

    in_flight: dict[Message, float]
    _session: RescuableSocket[Frame]

    @property
    def rescuable(self) -> RescuableSocket[Frame]:
        """The socket that it shares."""
        return self._session

    def touch(self, message: Message) -> None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        self.in_flight[message] = monotonic()

    def keep(self, now: float, expired: Collection[Message]) -> None:
        """Nothing is to be said in the hub's place."""

    def resumed(self) -> None:
        """Nothing was."""


class Asked(msgspec.Struct):
    """A request that is not answered yet."""

    owner: object
    then: Then
    due: float
    """Monotonic: an answer after that is overdue."""
    anywhere: bool
    """``then`` may be called in any thread."""
