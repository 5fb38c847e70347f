"""Counts the leases that run out where a broker does not say so, and keeps what came too late from being settled. No policy.

JetStream and RocketMQ answer a finish that came too late as any other, and what is said of such a message then may make one
delivery more. So it goes by what is known here of each lease, and a little early.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from time import monotonic
from typing import Protocol

from gevent.hub import get_hub

from framework.errors import AlreadySettled
from framework.message import Message
from framework.transports.contract import Connection, Receiver

CERTAIN = 0.95
"""The part of a lease that is counted on: the broker's clock of it began before ours."""
LOOK = 0.25
"""Seconds between two looks for leases that are over, at most."""
LOOKS = 10
"""How often in a lease it is looked, at least."""
WORDS = "its lease is over by this machine's clock"


class Guarded(Connection, Protocol):
    """Whose leases are guarded; its ``in_flight`` is the same dict for ever."""

    def forget_lease(self, message: Message) -> None:
        """``message``, out of ``in_flight`` by now, is not ours any more: say nothing of it to the broker."""


class Leases(Protocol):
    """What is known of when each lease began."""

    def is_over(self, message: Message, at: float, now: float) -> bool:
        """``at``: when ``message``, which is in flight, was received or touched."""

    def over(self, in_flight: dict[Message, float], now: float) -> list[Message]:
        """Those in flight whose lease is over."""


class Received:
    """Leases begin when their messages are received or touched here: declare a ``Limits.lease`` that is a little shorter than
    what was asked for."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def is_over(self, message: Message, at: float, now: float) -> bool:
        limit = now - self._connection.limits.lease
        if at > limit:
            return False
        if (rescuable := self._connection.rescuable) is not None:  # what was touched in the hub's place is not over
            rescuable.rescued()
        return self._connection.in_flight.get(message, at) <= limit

    def over(self, in_flight: dict[Message, float], now: float) -> list[Message]:
        limit = now - self._connection.limits.lease
        return list(takewhile(lambda message: in_flight[message] <= limit, in_flight))


class LeaseGuard:
    """Over the leases of one connection, on its hub, from when it is made until ``close``."""

    def __init__(
        self, connection: Guarded, receiver: Receiver, leases: Leases | None = None, *, words: str = WORDS,
        regularly: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """``leases``: else they are ``Received``. ``regularly`` is called in place of ``look``, which it calls when it may."""
        self._connection = connection
        self._receiver = receiver
        self._leases = leases or Received(connection)
        self._words = words
        self._regularly = regularly or self.look
        self._in_flight = connection.in_flight
        self._is_over = self._leases.is_over  # most messages come by here: each name that is looked up is 2 % of a ``take``
        self.begin()

    def begin(self) -> None:
        """Look as often as the leases of ``Limits`` ask for; again when these have changed."""
        seconds = min(LOOK, self._connection.limits.lease / LOOKS)
        self._timer = get_hub().loop.timer(seconds, seconds)
        self._timer.start(self._regularly)

    def take(self, message: Message) -> None:
        """Take ``message`` out of ``in_flight``, to settle or to touch it. Raises AlreadySettled when it is not there, or its
        lease is over: then nothing may be said of it."""
        in_flight = self._in_flight
        at = in_flight.get(message)
        if at is None:
            raise AlreadySettled.of(message.id)
        over = self._is_over(message, at, monotonic())
        if in_flight.pop(message, None) is None:  # whoever looked has lost it
            raise AlreadySettled.of(message.id)
        if over:
            self._lose(message)
            raise AlreadySettled.of(message.id)

    def look(self) -> None:
        """Lose those whose leases are over."""
        if (rescuable := self._connection.rescuable) is not None:  # what was touched in the hub's place is not over
            rescuable.rescued()
        for message in self._leases.over(self._in_flight, monotonic()):
            if self._in_flight.pop(message, None) is not None:  # else whoever was told of another has settled it
                self._lose(message)

    def _lose(self, message: Message) -> None:
        self._connection.forget_lease(message)
        self._receiver.tally.lease_lost += 1
        self._receiver.lost(self._connection, message, self._words)

    def close(self) -> None:
        self._timer.stop()
        self._timer.close()
