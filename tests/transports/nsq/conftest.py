"""What the tests of the NSQ transport share: a receiver that records, and a way to wait for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.message import Message
from framework.transports.nsq.connection import NsqConnection, connect

TOPIC, CHANNEL = "orders", "billing"


class Recorder:
    """A receiver that writes down what it is told; ``on_deliver`` is called with the connection and each batch."""

    def __init__(self, on_deliver: Callable[[NsqConnection, list[Message]], None] | None = None) -> None:
        self.tally = SimpleNamespace(received=0, finished=0, requeued=0, lease_lost=0)
        self.messages: list[Message] = []
        self.losses: list[tuple[Message | None, str]] = []
        self.settled_calls = 0
        self.drained_calls = 0
        self.ends: list[Exception | None] = []
        self.on_deliver = on_deliver

    def deliver(self, connection: NsqConnection, batch: list[Message]) -> None:
        self.messages += batch
        if self.on_deliver is not None:
            self.on_deliver(connection, batch)

    def settled(self, connection: NsqConnection) -> None:
        self.settled_calls += 1

    def lost(self, connection: NsqConnection, message: Message | None, words: str) -> None:
        self.losses.append((message, words))

    def drained(self, connection: NsqConnection) -> None:
        self.drained_calls += 1

    def closed(self, connection: NsqConnection, error: Exception | None) -> None:
        assert not connection.in_flight
        self.ends.append(error)

    @property
    def adds_up(self) -> bool:
        """For a connection that is closed: every message received has exactly one end."""
        t = self.tally
        return t.received == t.finished + t.requeued + t.lease_lost


def finish_all(connection: NsqConnection, batch: list[Message]) -> None:
    for message in batch:
        connection.finish(message)


def until(condition: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Turn the hub until ``condition`` holds; fails the test when it does not in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        gevent.sleep(0.005)
    return value


@pytest.fixture
def tools() -> SimpleNamespace:
    return SimpleNamespace(Recorder=Recorder, finish_all=finish_all, until=until, topic=TOPIC, channel=CHANNEL)


@pytest.fixture
def subscribe() -> Iterator[Callable[..., NsqConnection]]:
    """``subscribe(node, receiver)`` -> a connection to orders/billing, closed after the test."""
    made: list[NsqConnection] = []

    def open_one(node: str, receiver: Recorder, *, lease: float | None = None, heartbeat: float = 30.0) -> NsqConnection:
        made.append(connect(node, TOPIC, CHANNEL, receiver, lease=lease, heartbeat=heartbeat))
        return made[-1]

    yield open_one
    for connection in made:
        connection.close()
    gevent.sleep(0)
