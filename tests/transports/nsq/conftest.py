"""What the tests of the NSQ transport share: a receiver that records, and a way to wait for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.message import Message
from framework.testing.certificates import Authority
from framework.testing.servers import Server, ServerMissing, free_port
from framework.transports.nsq import wire
from framework.transports.nsq.connection import NsqConnection, connect
from framework.transports.nsq.producer import NsqProducer
from framework.transports.nsq.urls import Options
from tests.conftest import missing

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

    def lost(self, connection: NsqConnection, message: Message | None, words: str, *, settled: bytes = b"") -> None:
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


def stored(nsqd: Server, topic: str = "orders") -> int:
    return sum(t["message_count"] for t in nsqd.http(f"/stats?format=json&topic={topic}")["topics"] or [])  # null: unknown


def read_pub(file) -> bytes:
    file.readline()
    return file.read(int.from_bytes(file.read(4)))


@pytest.fixture
def tools() -> SimpleNamespace:
    return SimpleNamespace(
        Recorder=Recorder, finish_all=finish_all, until=until, stored=stored, read_pub=read_pub, topic=TOPIC, channel=CHANNEL
    )


@pytest.fixture
def subscribe() -> Iterator[Callable[..., NsqConnection]]:
    """``subscribe(node, receiver)`` -> a connection to orders/billing, closed after the test."""
    made: list[NsqConnection] = []

    def open_one(node: str, receiver: Recorder, *, lease: float | None = None, **options: object) -> NsqConnection:
        made.append(connect(node, TOPIC, CHANNEL, receiver, Options(**{"msg_timeout": lease or 0.0} | options)))
        return made[-1]

    yield open_one
    for connection in made:
        connection.close()
    gevent.sleep(0)


@pytest.fixture
def make_producer():
    made: list[NsqProducer] = []

    def make(*nodes: str, deadline: float = 10.0, **options: object) -> NsqProducer:
        made.append(NsqProducer(lambda: set(nodes), Options(**options), deadline=deadline))
        return made[-1]

    yield make
    for producer in made:
        producer.close()
    gevent.sleep(0)


@pytest.fixture
def kit(tools, subscribe, make_producer) -> SimpleNamespace:
    """The tools, ``subscribe``, and ``producer``, which makes one."""
    return SimpleNamespace(**vars(tools), subscribe=subscribe, producer=make_producer)


@pytest.fixture
def cutting_proxy(listening):
    """``cutting_proxy(nsqd)`` -> its address and a function that cuts every connection through it."""

    def start(nsqd: Server):
        pairs = set()

        def pump(a, b) -> None:
            try:
                while data := a.recv(100):  # small, so that cuts fall between commands and their answers
                    b.sendall(data)
            except OSError:
                pass

        def serve(sock) -> None:
            with gevent.socket.create_connection(("127.0.0.1", nsqd.tcp_port)) as there:
                pairs.add(pair := (sock, there))
                gevent.joinall([gevent.spawn(pump, sock, there), gevent.spawn(pump, there, sock)], count=1)
                pairs.discard(pair)

        def cut() -> None:
            for sock in [s for pair in pairs for s in pair]:
                sock.close()

        return listening(serve), cut

    return start


@pytest.fixture
def fake_nsqd(listening):
    """``fake_nsqd(script)``: answers IDENTIFY, then ``script(sock, file)``."""

    def start(script) -> str:
        def serve(sock) -> None:
            file = sock.makefile("rb")
            file.read(4)
            file.readline()
            file.read(int.from_bytes(file.read(4)))
            sock.sendall(wire.encode_frame(0, b'{"version":"1","max_rdy_count":1,"msg_timeout":1,"max_msg_timeout":1}'))
            script(sock, file)

        return listening(serve)

    return start


@pytest.fixture
def fake_http(listening):
    """``fake_http(b"HTTP/1.1 200 OK...")`` answers every request by these bytes and closes; None never answers."""

    def start(answer: bytes | None) -> str:
        def serve(sock) -> None:
            sock.recv(65536)
            if answer is None:
                gevent.sleep(30)
            else:
                sock.sendall(answer)

        return listening(serve)

    return start


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    try:
        return Authority(tmp_path_factory.mktemp("ca"))
    except ServerMissing as error:
        missing(str(error))


@pytest.fixture(scope="module")
def pair(authority):
    return authority.sign("nsqd")


@pytest.fixture
def start_tls_nsqd(start_nsqd, pair):
    def start(*flags):
        return start_nsqd(*tls_flags(pair), *flags)

    return start


def tls_flags(pair):
    """With a port for HTTPS as well: its own would be 4152, for each of them."""
    return f"--tls-cert={pair.cert}", f"--tls-key={pair.key}", f"--https-address=127.0.0.1:{free_port()}"
