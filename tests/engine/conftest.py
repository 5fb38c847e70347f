"""A broker in memory for the engine's tests: the contract's semantics on the hub, no sockets, and nodes that can fail."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import gevent
import pytest

from framework.engine.ledger import Ledger
from framework.engine.supervisor import Supervisor
from framework.errors import AlreadySettled, BrokerError, BrokerUnreachable
from framework.handler import HandlerSpec
from framework.message import Message
from framework.testing.servers import Server
from framework.transports.contract import Capabilities, Limits, NodeInfo, Receiver
from tests.engine import real


class FakeConnection:
    """A subscription on a node of the FakeBroker. What is said is heard by the node in the same hub turn."""

    lasting_ids = False

    def __init__(self, node: FakeNode, topic: str, channel: str, receiver: Receiver) -> None:
        self.node, self.topic, self.channel = node.name, topic, channel
        self.limits = node.limits
        self.granted = 0
        self.in_flight: dict[Message, float] = {}
        self.touches = 0
        self.lowest_room = 0
        self.draining = self.ended = False
        self._node, self._receiver = node, receiver
        self._said: list[tuple[str, Any]] = []
        self._loop = gevent.get_hub().loop
        node.connections.append(self)

    def grant(self, n: int) -> None:
        self.granted = n
        self._say("grant", n)

    def finish(self, message: Message) -> None:
        self._settle(message)
        self._say("finish", message)

    def requeue(self, message: Message, delay: float) -> None:
        self._settle(message)
        self._say("requeue", (message, delay))

    def touch(self, message: Message) -> None:
        self._settle(message)
        self.in_flight[message] = time.monotonic()
        self.touches += 1

    def drain(self) -> None:
        self.draining = True
        self.grant(0)
        self._say("drain", None)

    def unsent(self) -> int:
        return len(self._said)

    def close(self) -> None:
        self._loop.run_callback(self.end, None)

    def end(self, error: Exception | None) -> None:
        if self.ended:
            return
        self._flush()
        self.ended = True
        self._node.connections.remove(self)
        for message in self.in_flight:
            self._node.put(message)
        self._receiver.tally.lease_lost += len(self.in_flight)
        self.in_flight.clear()
        self._receiver.closed(self, error)

    def lose(self, message: Message) -> None:
        """The broker's lease of ``message`` ran out."""
        del self.in_flight[message]
        self._receiver.tally.lease_lost += 1
        self._receiver.lost(self, message, "TOUCH failed")
        self._node.put(message)

    def room(self) -> int:
        return 0 if self.ended or self.draining else self.granted - len(self.in_flight)

    rescuable: Any = None
    parked = 0
    """What a request may still bring, whatever is granted."""

    @property
    def exposed(self) -> int:
        return max(self.granted, len(self.in_flight), self.parked)

    def take(self, batch: list[Message]) -> None:
        now = time.monotonic()
        self.in_flight.update(dict.fromkeys(batch, now))
        self._receiver.tally.received += len(batch)
        self._receiver.deliver(self, batch)
        self._flush()

    def _settle(self, message: Message) -> None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled(message.id.decode())

    def _say(self, verb: str, what: Any) -> None:
        if not self._said:
            self._loop.run_callback(self._turn)
        self._said.append((verb, what))

    def _turn(self) -> None:
        if any(verb in ("finish", "requeue") for verb, _ in self._said):
            self._receiver.settled(self)
        self._flush()

    def _flush(self) -> None:
        said, self._said = self._said, []
        for verb, what in said:
            if verb == "finish":
                self._receiver.tally.finished += 1
                self._node.broker.finished.append(what.id)
            elif verb == "requeue":
                self._receiver.tally.requeued += 1
                self._node.put(what[0], what[1])
            elif verb == "drain" and not self._node.mute:
                self._loop.run_callback(self._receiver.drained, self)
        self._node.ring()


class FakeNode:
    """One server: a queue for each topic. It fans nothing out: one channel a topic is enough here."""

    def __init__(self, broker: FakeBroker, name: str) -> None:
        self.broker, self.name = broker, name
        self.up = True
        self.mute = False
        """It does not answer a drain."""
        self.limits = Limits(lease=60.0, max_lease=900.0, max_grant=2500)
        self.queues: dict[str, deque[tuple[bytes, int, bytes]]] = {}
        self.connections: list[FakeConnection] = []
        self._rung = False

    def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        queue = self.queues.setdefault(topic, deque())
        queue.extend((b"%016x" % next(self.broker.ids), 0, body) for body in bodies)
        self.ring()

    def put(self, message: Message, delay: float = 0.0) -> None:
        entry = (message.id, message.attempts, message.body)
        if delay:
            gevent.spawn_later(delay, self._put, message.connection.topic, entry)
        else:
            self._put(message.connection.topic, entry)

    def _put(self, topic: str, entry: tuple[bytes, int, bytes]) -> None:
        self.queues.setdefault(topic, deque()).append(entry)
        self.ring()

    def ring(self) -> None:
        if not self._rung:
            self._rung = True
            gevent.get_hub().loop.run_callback(self._serve)

    def _serve(self) -> None:
        self._rung = False
        for connection in list(self.connections):
            queue = self.queues.get(connection.topic)
            count = min(connection.room(), len(queue)) if queue else 0
            if count > 0 and queue:
                entries = [queue.popleft() for _ in range(count)]
                connection.take([Message(i, time.time_ns(), tries + 1, body, connection) for i, tries, body in entries])

    def kill(self) -> None:
        """The server dies; what was in flight is kept for when it is back."""
        self.up = False
        for connection in list(self.connections):
            connection.end(BrokerUnreachable(f"{self.name} closed the connection"))


class FakeBroker:
    """Several nodes, as one Transport."""

    capabilities = Capabilities(
        touch=True, attempts=True, fan_out=False, max_requeue=3600.0, max_defer=3600.0, longer_lease="start it with --lease"
    )

    def __init__(self) -> None:
        self.ids = itertools.count(1)
        self.nodes: dict[str, FakeNode] = {}
        self.finished: list[bytes] = []
        self.discovery_error: Exception | None = None
        self.started: list[tuple[Any, int]] = []
        """The hub, and how often it had been dialled by then."""
        self.ensure_error: Exception | None = None
        self.ensured: list[tuple[str, tuple[str, ...]]] = []
        self.dials = 0
        self.node("a:1")

    def node(self, name: str) -> FakeNode:
        """The node of that name, made when there is none."""
        return self.nodes.setdefault(name, FakeNode(self, name))

    def publish(self, topic: str, *bodies: bytes) -> None:
        next(iter(self.nodes.values())).publish(topic, bodies)

    def connections(self) -> list[FakeConnection]:
        return [connection for node in self.nodes.values() for connection in node.connections]

    def discover(self, topic: str, channel: str = "") -> set[str]:
        if self.discovery_error is not None:
            raise self.discovery_error
        return set(self.nodes)

    def topics(self) -> set[str]:
        return {topic for node in self.nodes.values() for topic in node.queues}

    def backlog(self, topic: str, channel: str) -> dict[str, int]:
        return {name: len(node.queues[topic]) for name, node in self.nodes.items() if topic in node.queues}

    def start(self, hub: Any) -> None:
        self.started.append((hub, self.dials))

    def close(self) -> None: ...

    def describe(self, topic: str, channel: str) -> list[NodeInfo]:
        return [NodeInfo(name, "fake", node.limits) for name, node in self.nodes.items() if node.up]

    def ensure(self, topic: str, channels: Collection[str]) -> None:
        """With ``auto_create`` off, a topic that was not made cannot be connected to."""
        if self.ensure_error is not None:
            raise self.ensure_error
        self.ensured.append((topic, tuple(channels)))

    def connect(
        self, node: str, topic: str, channel: str, receiver: Receiver
    ) -> FakeConnection:  # fmt: skip
        self.dials += 1
        gevent.sleep(0)
        if not self.capabilities.auto_create and (topic, (channel,)) not in self.ensured:
            raise BrokerError("NOT_FOUND", f"{node} has no topic {topic}")
        if not self.nodes[node].up:
            raise BrokerUnreachable(f"{node} refused the connection")
        return FakeConnection(self.nodes[node], topic, channel, receiver)

    def producer(self) -> Any:
        raise NotImplementedError

    def probe(self) -> list[NodeInfo]:
        raise NotImplementedError


def make_spec(function: Callable[[Any], Any], **options: Any) -> HandlerSpec:
    defaults: dict[str, Any] = {
        "topic": "orders", "channel": "billing", "decode": None, "concurrency": 10, "max_in_flight": 100, "timeout": 60.0,
        "max_attempts": 5, "batch": 0, "linger": 0.05,
    }  # fmt: skip
    return HandlerSpec(function=function, **{**defaults, **options})


class Running:
    """A supervisor running in a greenlet; whatever the test does, its ledgers must add up when it ends."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.greenlet = gevent.spawn(supervisor.run)

    def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self.greenlet.dead:
                self.greenlet.get()
            assert time.monotonic() < deadline, "the condition did not become true in time"
            gevent.sleep(0.002)

    def stop(self, *, now: bool = False) -> dict[str, int]:
        """Stop, check the books, and return the first handler's ledger."""
        self.supervisor.stop(now)
        return self.end()

    def end(self) -> dict[str, int]:
        """Wait for the end of a stop, check the books, and return the first handler's ledger."""
        self.greenlet.get(timeout=30)
        for ledger in self.supervisor.ledgers.values():
            assert ledger.balance(0) == 0, ledger
        return next(iter(self.ledgers)).as_dict()

    @property
    def ledgers(self) -> list[Ledger]:
        return list(self.supervisor.ledgers.values())


@pytest.fixture
def broker() -> FakeBroker:
    """A broker of one node, ``a:1``."""
    return FakeBroker()


@pytest.fixture
def spec() -> Callable[..., HandlerSpec]:
    """``spec(function, concurrency=3)``."""
    return make_spec


@pytest.fixture
def run(broker: FakeBroker) -> Iterator[Callable[..., Running]]:
    """``run(function, concurrency=3)``: one handler on ``broker``, running; several HandlerSpecs likewise."""
    started: list[Running] = []

    def start(
        *handlers: Any, dead: Callable[[str, bytes], None] | None = None, supervisor: Any = None, **options: Any
    ) -> Running:
        specs = [h if isinstance(h, HandlerSpec) else make_spec(h, **options) for h in handlers]
        publish = dead or broker.publish
        one = Running(Supervisor(specs, [broker], publish=publish, **(supervisor or {})))
        started.append(one)
        return one

    yield start
    for one in started:
        if not one.greenlet.dead:
            one.supervisor.stop(now=True)
            one.greenlet.join(timeout=10)


@pytest.fixture
def run_real() -> Iterator[Callable[..., real.Running]]:
    """``run_real(nsqd, spec(function))``: handlers on one real nsqd, or several, running."""
    started: list[real.Running] = []

    def start(servers: Server | Sequence[Server], *specs: HandlerSpec, **options: Any) -> real.Running:
        one = real.Running([servers] if isinstance(servers, Server) else servers, specs, **options)
        started.append(one)
        return one

    yield start
    for one in started:
        if not one.greenlet.dead:
            one.supervisor.stop(now=True)
            one.greenlet.join(timeout=10)


@pytest.fixture
def limited(broker: Any) -> Callable[..., None]:
    """``broker`` takes no delay above 0.3 seconds; the publish of its supervisor."""
    broker.capabilities = replace(broker.capabilities, max_requeue=0.3, max_defer=0.3)

    def publish(topic: str, body: bytes, *, delay: float = 0.0) -> None:
        assert delay <= 0.3
        broker.publish(topic)  # the topic is there at once
        gevent.spawn_later(delay, broker.publish, topic, body)

    return publish
