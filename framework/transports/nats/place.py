"""What a connection subscribes to, in the engine's words and in JetStream's. No I/O here."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from framework.transports.nats.streams import NEVER, Consumer


class Place(NamedTuple):
    """What is subscribed to, in the engine's words and in JetStream's."""

    node: str
    topic: str
    channel: str
    stream: str
    consumer: str
    longest_pull: int = 0
    """Nanoseconds; 0: any."""
    created: datetime = NEVER
    """When the consumer was made: one of its name that was made at another time is another."""

    @property
    def acks(self) -> str:
        """How the subjects begin at which its messages are settled."""
        return acks(self.stream, self.consumer)

    @property
    def election(self) -> bytes:
        """The subject at which a server of a cluster tells that it leads from now on."""
        return f"$JS.EVENT.ADVISORY.CONSUMER.LEADER_ELECTED.{self.stream}.{self.consumer}".encode()

    @property
    def told(self) -> tuple[bytes, ...]:
        """All subjects at which something is told of it."""
        return *self.deletions, self.election

    @property
    def deletions(self) -> tuple[bytes, ...]:
        """The subjects at which JetStream tells that it is deleted."""
        told = "$JS.EVENT.ADVISORY"
        stream = f"{told}.STREAM.DELETED.{self.stream}"
        return stream.encode(), f"{told}.CONSUMER.DELETED.{self.stream}.{self.consumer}".encode()


def acks(stream: str, consumer: str) -> str:
    """How the subjects begin at which messages of ``consumer`` are settled."""
    return f"$JS.ACK.{stream}.{consumer}."


def place(node: str, topic: str, channel: str, consumer: Consumer) -> Place:
    """What a connection to ``consumer`` subscribes to."""
    return Place(node, topic, channel, consumer.stream_name, consumer.name, consumer.config.max_expires, consumer.created)
