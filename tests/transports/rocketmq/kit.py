"""Topics of a test's own on the RocketMQ that many share."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent

from framework.engine.ledger import Ledger
from framework.message import Message
from framework.testing.conformance.receiver import Held
from framework.testing.rocketmq import RocketMQ, real_rocketmq
from framework.testing.servers import ServerMissing
from framework.transports import open_transports
from framework.transports.rocketmq.administration import has_topic, make_topics
from framework.transports.rocketmq.wire.codes import Request
from tests.conftest import missing

_numbers = itertools.count(1)


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Turn the hub until ``condition`` holds; fails the test when it does not in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        gevent.sleep(0.005)
    return value


def started(data: Path, *settings: Any, **more: Any) -> Iterator[RocketMQ]:
    """For a fixture: ``real_rocketmq``, which is killed at the end. Without one its tests are skipped, and fail in CI."""
    try:
        made = real_rocketmq(data, *settings, **more)
    except ServerMissing as error:
        missing(str(error))
        raise
    made.start()
    yield made
    made.kill()


class Sink:
    """``contract.Receiver``: finishes all that comes, however much it is."""

    capacity = 10

    def __init__(self) -> None:
        self.tally = Ledger()
        self.bodies: Counter[bytes] = Counter()
        self.closings = 0

    def deliver(self, connection: Any, batch: list[Message]) -> None:
        self.bodies.update(message.body for message in batch)
        for message in batch:
            connection.finish(message)

    def settled(self, connection: Any) -> None: ...

    def lost(self, *_: Any, **__: Any) -> None: ...

    def drained(self, connection: Any) -> None: ...

    def closed(self, connection: Any, error: Exception | None) -> None:
        self.closings += 1


class Kit:
    """A topic of its own on the shared broker, transports to it, and what is closed at the end."""

    def __init__(self, server: RocketMQ) -> None:
        self.server = server
        self.topic = f"orders.{os.getpid()}-{next(_numbers)}"
        self.topic_there = self.topic.replace(".", "%2E")
        """How RocketMQ knows it."""
        self._held: list[Held] = []
        self._closing: list[Any] = []

    def open(self, options: str = "") -> Any:
        (transport,) = open_transports([f"rocketmq://{self.server.address}?poll=200ms{options}"])
        self._closing.append(transport)
        return transport

    def hold(self, transport: Any, channel: str = "billing", *, grant: int = 10) -> Held:
        transport.ensure(self.topic, [channel])
        held = Held(lambda receiver: transport.connect(self.server.name, self.topic, channel, receiver))
        held.grant(grant)
        self._held.append(held)
        return held

    def publish(self, *bodies: bytes, **how: Any) -> None:
        producer = self.open().producer()
        self._closing.insert(0, producer)
        producer.publish(self.topic, bodies, **how)

    def spread(self, *bodies: bytes) -> None:
        """Publish them to all queues: those of one request lie in one."""
        producer = self.open().producer()
        self._closing.insert(0, producer)
        assert not any(producer.publish_each(self.topic, bodies))

    def closed_stays_closed(self) -> None:
        """A topic of perm 0, to which no name server has a route, is left as it is where it is to be made."""
        closed = {
            "topic": self.topic_there, "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3", "perm": "0",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        other = f"{self.topic_there}-other"
        with self.open()._sessions.use(self.server.broker.address) as session:
            assert not has_topic(session, self.topic_there)
            session.ask(Request.UPDATE_AND_CREATE_TOPIC, closed)
            assert make_topics(session, [self.topic_there, other]) == make_topics(session, [self.topic_there]) == {}
            assert has_topic(session, other)
            found = session.ask(Request.GET_ALL_TOPIC_CONFIG, {}).body
        as_it_was = rb'"perm":0,"readQueueNums":3,[^{}]*"topicName":"%b"' % re.escape(self.topic_there.encode())
        assert re.search(as_it_was, found)

    def close(self) -> None:
        for held in self._held:
            held.connection.close()
        until(lambda: all(held.receiver.closings for held in self._held))
        for one in self._closing:
            one.close()
        for held in self._held:
            held.check()
