"""What a connection subscribes to, in the engine's words and in JetStream's. No I/O here."""

from __future__ import annotations

from typing import NamedTuple

from framework.transports.nats.streams import Consumer


class Place(NamedTuple):
    """What is subscribed to, in the engine's words and in JetStream's."""

    node: str
    topic: str
    channel: str
    stream: str
    consumer: str
    longest_pull: int = 0
    """Nanoseconds; 0: any."""


def place(node: str, topic: str, channel: str, consumer: Consumer) -> Place:
    """What a connection to ``consumer`` subscribes to."""
    return Place(node, topic, channel, consumer.stream_name, consumer.name, consumer.config.max_expires)
