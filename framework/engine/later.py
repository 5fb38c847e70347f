"""Connects a handler to where its messages wait that have to wait longer than the broker takes, once there is such a place.

What is in their envelopes, and when they are due, is ``middleware.later``'s to say.
"""

from __future__ import annotations

from collections.abc import Iterable

from gevent.event import Event

from framework.engine.consumer import Consumer
from framework.engine.dialler import Dialler
from framework.errors import BrokerUnreachable
from framework.handler import HandlerSpec
from framework.message import Message
from framework.middleware.later import MARK, later_topic
from framework.names import EPHEMERAL
from framework.transports.contract import Connection, Tally, Transport

POLL = 60.0
"""Seconds between two looks for waiting messages of earlier or other workers: what waits there waits for much longer."""
FOREVER = 366 * 86_400.0
"""A broker that takes such delays needs no help."""


def longest_delay(transports: Iterable[Transport]) -> float:
    """The longest delay that every one of ``transports`` takes."""
    return min((transport.capabilities.max_defer for transport in transports), default=FOREVER)


def may_wait(spec: HandlerSpec, transport: Transport) -> bool:
    """Whether messages of a handler may wait there. Those of what is ephemeral wait for as long as the broker takes."""
    lasting = not (spec.topic.endswith(EPHEMERAL) or spec.channel.endswith(EPHEMERAL))
    return lasting and transport.capabilities.max_defer < FOREVER


class LaterDialler(Dialler):
    """Subscribes only where the topic exists: few handlers ever ask for such a delay."""

    def __init__(self, consumer: Consumer, transport: Transport, changed: Event) -> None:
        super().__init__(consumer, transport, POLL, changed)
        self._topic = later_topic(consumer.spec)
        self._receiver = _Marking(consumer)
        self._unknown_poll = POLL
        self._blind: BrokerUnreachable | None = None

    def check(self, topic: str) -> None:
        """Raises BrokerUnreachable for its topic when it cannot see what waits there: nobody would fetch it after a restart."""
        if topic == self._topic and self._blind is not None:
            raise self._blind

    def _find(self) -> set[str]:
        try:
            found = set(self._transport.backlog(self._topic, self.consumer.spec.channel))
        except BrokerUnreachable as error:  # no word of it in the log unless a handler asks for such a delay
            self._blind = error
            return self._known or set()
        self._blind = None
        return found


class _Marking:
    """``contract.Receiver``: the consumer, and all that comes here is marked as an envelope."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.tally: Tally = consumer.tally
        self.settled = consumer.settled
        self.lost = consumer.lost
        self.drained = consumer.drained
        self.closed = consumer.closed

    def deliver(self, connection: Connection, batch: list[Message]) -> None:
        for message in batch:
            message.attempts += MARK
        self._consumer.deliver(connection, batch)
