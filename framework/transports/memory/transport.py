"""``memory://`` as a ``contract.Transport``: brokers that live in this process and end with it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from framework import names
from framework.errors import BadMessage, BadSetting, BrokerUnreachable, PublishError
from framework.headers import NONE, Headers
from framework.transports.contract import Capabilities, NodeInfo, Receiver, Transport
from framework.transports.memory.broker import MemoryBroker, MemoryNode, named
from framework.transports.memory.connection import MemoryConnection

_NAME = re.compile(r"[a-zA-Z0-9._-]*")
_MOST_PRIORITY = 2**32 - 1


def open(urls: Sequence[str]) -> Transport:
    """A transport over the brokers that ``memory://`` and ``memory://name`` name. Raises BadSetting."""
    return MemoryTransport([named(_name(url)) for url in urls])


def _name(url: str) -> str:
    name = url.partition("://")[2]
    if not _NAME.fullmatch(name):
        raise BadSetting(
            f"broker URL {url!r}: write memory:// or memory://name, with a name of a-z A-Z 0-9 . _ -, and nothing else"
        )
    return name


class MemoryTransport:
    """One or more brokers of this process."""

    def __init__(self, brokers: Sequence[MemoryBroker]) -> None:
        self.brokers = list(dict.fromkeys(brokers))

    @property
    def capabilities(self) -> Capabilities:
        """Those of the first: it is the one that is published to."""
        return self.brokers[0].capabilities

    def start(self, hub: object) -> None:
        """The brokers are up."""

    def close(self) -> None:
        """They stay: others in this process may use them."""

    def accept(self, topic: str, channels: Collection[str]) -> None:
        for broker in self.brokers:
            broker.accept(topic, channels)

    def describe(self, topic: str = "", channel: str = "") -> list[NodeInfo]:
        nodes = [node for node in self._nodes().values() if node.up]
        return [NodeInfo(node.name, "memory", node.broker.limits, node.broker.capabilities) for node in nodes]

    def discover(self, topic: str, channel: str = "") -> set[str]:
        return set(self._nodes())

    def channels(self, topic: str) -> set[str]:
        found: set[str] = set()
        for node in self._nodes().values():
            if topic in node.topics:
                found.update(node.topics[topic].channels)
        return found

    def topics(self) -> set[str]:
        return {topic for broker in self.brokers for topic in broker.topics()}

    def backlog(self, topic: str, channel: str) -> dict[str, int]:
        return {name: node.depth(topic, channel) for name, node in self._nodes().items() if topic in node.topics}

    def ensure(self, topic: str, channels: Collection[str]) -> None:
        for broker in self.brokers:
            with broker.lock:
                for node in broker.nodes.values():
                    for channel in channels:
                        node.topic(topic).channel(channel)
                    node.topic(topic)

    def connect(self, node: str, topic: str, channel: str, receiver: Receiver) -> MemoryConnection:
        server = self._up(node)
        return MemoryConnection(
            server, names.check("topic", topic), names.check("channel", channel), receiver, server.broker.limits
        )

    def producer(self) -> MemoryProducer:
        return MemoryProducer(self.brokers)

    def probe(self) -> list[NodeInfo]:
        return [NodeInfo(name, "memory", self._up(name).broker.limits) for name in sorted(self._nodes())]

    def _nodes(self) -> dict[str, MemoryNode]:
        return {name: node for broker in self.brokers for name, node in broker.nodes.items()}

    def _up(self, name: str) -> MemoryNode:
        node = self._nodes().get(name)
        if node is None or not node.up:
            raise BrokerUnreachable(f"{name} refused the connection")
        return node


class MemoryProducer:
    """Publishes to the first of ``brokers`` that has a node up. Safe to share between greenlets and threads; never blocks."""

    def __init__(self, brokers: Sequence[MemoryBroker]) -> None:
        self._brokers = brokers
        self._closed = False

    def publish(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> None:  # fmt: skip
        """All of ``bodies`` or none. Raises BadName, BadMessage, PublishError."""
        self._check(topic, bodies, delay, priority)
        self._store(topic, bodies, delay, priority, headers)

    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> list[PublishError | None]:  # fmt: skip
        """A request for each, in their order. Raises BadName, BadMessage (nothing was stored)."""
        self._check(topic, bodies, delay, priority)
        return [self._outcome(topic, body, delay, priority, headers) for body in bodies]

    def publish_headed(
        self, topic: str, bodies: Sequence[bytes], headers: Sequence[Headers], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None,
    ) -> None:  # fmt: skip
        """``contract.HeadsEach``"""
        self._check(topic, bodies, delay, priority)
        for body, given in zip(bodies, headers, strict=True):
            self._store(topic, [body], delay, priority, given)

    def close(self) -> None:
        self._closed = True

    def _outcome(self, topic: str, body: bytes, delay: float, priority: int | None, headers: Headers) -> PublishError | None:
        try:
            self._store(topic, [body], delay, priority, headers)
        except PublishError as error:
            return error
        return None

    def _store(self, topic: str, bodies: Sequence[bytes], delay: float, priority: int | None, headers: Headers) -> None:
        if self._closed:
            raise PublishError("the producer is closed: make a new one")
        *first, last = self._brokers
        for broker in first:
            try:
                return broker.store(topic, bodies, delay, priority, headers)
            except PublishError as error:
                if error.stored is not False:
                    raise
        return last.store(topic, bodies, delay, priority, headers)

    def _check(self, topic: str, bodies: Sequence[bytes], delay: float, priority: int | None) -> None:
        names.check("topic", topic)
        longest = min(broker.capabilities.max_defer for broker in self._brokers)
        if not 0 <= delay <= longest:
            raise BadMessage(f"topic {topic!r}: a delay of {delay!r} s is out of range, give 0 to {longest:.0f} s")
        for broker in self._brokers:
            broker.accept(topic, ())
        if priority is not None and not (isinstance(priority, int) and 0 <= priority <= _MOST_PRIORITY):
            raise BadMessage(f"topic {topic!r}: priority={priority!r} is out of range, give 0 (most urgent) to {_MOST_PRIORITY}")
        largest = min(broker.max_size for broker in self._brokers)
        if set(map(type, bodies)) <= {bytes} and all(bodies) and max(map(len, bodies), default=0) <= largest:
            return
        at = next(i for i, body in enumerate(bodies) if type(body) is not bytes or not 0 < len(body) <= largest)
        raise _unfit(f"topic {topic!r}: message {at + 1} of {len(bodies)}", bodies[at], largest)


def _unfit(which: str, body: object, largest: int) -> BadMessage:
    if not isinstance(body, bytes):
        return BadMessage(f"{which} is {type(body).__name__}, not bytes; encode it")
    if not body:
        return BadMessage(f"{which} is empty, which nsqd would not take; give it a body or leave it out")
    return BadMessage(f"{which} has {len(body)} bytes, over the {largest} that the broker takes: make it smaller")
