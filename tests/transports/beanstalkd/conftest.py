"""What the tests of the beanstalkd transport share: handlers run by a supervisor on real servers, and a look into those."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gevent
import pytest

from framework.engine.ledger import Ledger
from framework.engine.supervisor import Supervisor
from framework.handler import HandlerSpec
from framework.message import Message
from framework.testing.servers import Server
from framework.transports import open_transports
from framework.transports.beanstalkd import Client, wire
from framework.transports.beanstalkd.connection import BeanstalkdConnection
from framework.transports.beanstalkd.dial import dial
from framework.transports.beanstalkd.transport import connect


def until(condition: Callable[[], Any], seconds: float = 30.0, state: Callable[[], object] = lambda: "") -> None:
    """Wait for ``condition``; ``state()`` says how things stand when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not become true in time: {state()}"
        gevent.sleep(0.005)


def url(servers: Server | Sequence[Server], options: str = "") -> str:
    servers = [servers] if isinstance(servers, Server) else servers
    return f"beanstalkd://{','.join(server.address for server in servers)}{options}"


def ask(server: Server, command: bytes, *words: str) -> wire.Reply:
    with dial(server.address) as line:
        return line.ask(command, *words or ("OK",))


def tube_stats(server: Server, tube: str = "orders") -> dict[str, int]:
    """The counters of a tube that exists; empty for one that does not."""
    return stats_of(server.address, tube)


def stats_of(node: str, tube: str) -> dict[str, int]:
    with dial(node) as line:
        reply = line.ask(wire.stats_tube(tube), "OK", "NOT_FOUND")
    return {key: int(value) for key, value in wire.stats(reply.data).items() if key != "name"} if reply.word == "OK" else {}


def server_stats(server: Server) -> dict[str, str]:
    return wire.stats(ask(server, wire.STATS).data)


def job_stats(server: Server, job: int) -> dict[str, str]:
    """Empty when there is no such job."""
    reply = ask(server, wire.stats_job(job), "OK", "NOT_FOUND")
    return wire.stats(reply.data) if reply.word == "OK" else {}


def spec(function: Callable[[Any], Any], **options: Any) -> HandlerSpec:
    defaults: dict[str, Any] = {
        "topic": "orders", "channel": "billing", "decode": None, "concurrency": 10, "max_in_flight": 200, "timeout": 30.0,
        "max_attempts": 5, "batch": 0, "linger": 0.05,
    }  # fmt: skip
    return HandlerSpec(function=function, **{**defaults, **options})


class Running:
    """A supervisor on real beanstalkds, in a greenlet."""

    def __init__(self, broker: str, specs: Sequence[HandlerSpec], **options: Any) -> None:
        self.transport = open_transports([broker])[0]
        self.producer = self.transport.producer()
        publish = lambda topic, body: self.producer.publish(topic, [body])  # noqa: E731
        self.supervisor = Supervisor(specs, [self.transport], publish=publish, **options)
        self.greenlet = gevent.spawn(self.supervisor.run)
        self.until(lambda: self.supervisor.ready)

    def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        def alive() -> Any:
            if self.greenlet.dead:
                self.greenlet.get()
            return condition()

        until(alive, seconds, self.state)

    def state(self) -> str:
        """The ledger, and what each connection holds and waits for."""
        each = [
            f"{one.node}: granted {one.granted}, in flight {len(one.in_flight)}, polling {one._poller.polling}, "
            f"dry {one._poller.dry}, undelivered {one._attempts.undelivered}, "
            f"a waiter waits {one.waiters.waiting is not None}, dialling {one.waiters.dialling}, "
            f"tube {stats_of(one.node, one._tube)}"
            for one in self.connections
        ]
        return "; ".join([str(self.ledger), *each, f"dialled: {[dialler.error for dialler in self.supervisor._diallers]}"])

    @property
    def connections(self) -> list[BeanstalkdConnection]:
        return [one for consumer in self.supervisor._consumers for one in consumer.accounts]

    @property
    def ledger(self) -> Any:
        return next(iter(self.supervisor.ledgers.values()))

    def stop(self) -> dict[str, int]:
        """Stop, and check that every ledger adds up."""
        self.supervisor.stop()
        return self.end()

    def end(self) -> dict[str, int]:
        self.greenlet.get(timeout=40)
        self.producer.close()
        for ledger in self.supervisor.ledgers.values():
            assert ledger.balance(0) == 0, ledger
        return self.ledger.as_dict()


@pytest.fixture
def run() -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(broker: str, *specs: HandlerSpec, **options: Any) -> Running:
        started.append(Running(broker, specs, **options))
        return started[-1]

    yield start
    for one in started:
        if not one.greenlet.dead:
            one.supervisor.stop(now=True)
            one.greenlet.join(timeout=10)


class Recorder:
    """A receiver that writes down what it is told, and settles nothing by itself."""

    def __init__(self) -> None:
        self.tally = Ledger()
        self.messages: list[Message] = []
        self.losses: list[tuple[bytes, str]] = []
        self.drains = 0
        self.ends: list[Exception | None] = []

    def deliver(self, connection: BeanstalkdConnection, batch: list[Message]) -> None:
        assert all(message in connection.in_flight for message in batch)
        self.messages += batch

    def settled(self, connection: BeanstalkdConnection) -> None:
        pass

    def lost(self, connection: BeanstalkdConnection, message: Message, words: str, *, settled: bytes = b"") -> None:
        self.losses.append((message.body, words))

    def drained(self, connection: BeanstalkdConnection) -> None:
        self.drains += 1

    def closed(self, connection: BeanstalkdConnection, error: Exception | None) -> None:
        assert not connection.in_flight
        self.ends.append(error)


@pytest.fixture
def receiver() -> Recorder:
    return Recorder()


@pytest.fixture
def subscribe(receiver: Recorder) -> Iterator[Callable[..., BeanstalkdConnection]]:
    """``subscribe(address, grant=1)`` -> a connection of ``receiver`` to the tube orders, closed after the test."""
    made: list[BeanstalkdConnection] = []

    def start(address: str, grant: int = 1) -> BeanstalkdConnection:
        made.append(connect(address, "orders", "billing", "orders", receiver, ttr=60.0))
        if grant:
            made[-1].grant(grant)
        return made[-1]

    yield start
    for one in made:
        one.close()
    until(lambda: len(receiver.ends) == len(made))
    assert receiver.tally.balance(0) == 0


@pytest.fixture
def server(start_beanstalkd):
    return start_beanstalkd("-F")


@pytest.fixture
def client(server):
    with Client(server.address, use="orders", watch="orders") as one:
        yield one


def finished(count: int, **others: int) -> dict[str, int]:
    return {"received": count, "finished": count, "requeued": 0, "dead": 0, "lease_lost": 0, **others}


def put(server, bodies, tube: str = "orders", **options) -> list[int]:
    with Client(server.address, use=tube) as client:
        return client.put_many(bodies, **options)
