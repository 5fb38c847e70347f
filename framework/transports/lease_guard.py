"""Counts the leases that run out where a broker does not say so, and keeps what came too late from being settled. No policy.

JetStream and RocketMQ answer a finish that came too late as any other, and what is said of such a message then may make one
delivery more. So it goes by this machine's clock: declare a ``Limits.lease`` that is a little shorter than what was asked for.
"""

from __future__ import annotations

from itertools import takewhile
from time import monotonic
from typing import Protocol

from gevent.hub import get_hub

from framework.errors import AlreadySettled
from framework.message import Message
from framework.transports.contract import Connection, Receiver

LOOKS = 10
"""How often in a lease it is looked for those that are over."""
WORDS = "its lease is over by this machine's clock"


class Guarded(Connection, Protocol):
    """Whose leases are guarded."""

    def forget_lease(self, message: Message) -> None:
        """``message``, out of ``in_flight`` by now, is not ours any more: say nothing of it to the broker."""


class LeaseGuard:
    """Over the leases of one connection, on its hub, from when it is made until ``close``."""

    def __init__(self, connection: Guarded, receiver: Receiver) -> None:
        self._connection = connection
        self._receiver = receiver
        seconds = connection.limits.lease / LOOKS
        self._timer = get_hub().loop.timer(seconds, seconds)
        self._timer.start(self.look)

    def take(self, message: Message) -> None:
        """Take ``message`` out of ``in_flight``, to settle or to touch it. Raises AlreadySettled when it is not there, or its
        lease is over: then nothing may be said of it."""
        in_flight = self._connection.in_flight
        if self._over(message):
            self.look()
        if in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)

    def look(self) -> None:
        """Lose those whose leases are over."""
        connection = self._connection
        if connection.rescuable is not None:  # what was touched in the hub's place is not over
            connection.rescuable.rescued()
        for message in list(takewhile(self._over, connection.in_flight)):
            del connection.in_flight[message]
            connection.forget_lease(message)
            self._receiver.tally.lease_lost += 1
            self._receiver.lost(connection, message, WORDS)

    def close(self) -> None:
        self._timer.stop()
        self._timer.close()

    def _over(self, message: Message) -> bool:
        at = self._connection.in_flight.get(message)
        return at is not None and monotonic() - at >= self._connection.limits.lease
