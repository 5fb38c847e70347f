"""What the tests of the route transport share: clusters of real servers, peers of them, and a plain client to look with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from framework.errors import BrokerRefuses
from framework.testing.conformance.receiver import Held
from framework.testing.servers import Server, ServerMissing, await_port, free_port
from framework.transports import open_transports
from framework.transports.nats import wire
from framework.transports.nats.dial import dial
from framework.transports.nats.session import Session
from tests.conftest import missing

from .streams import Streams
from .waiting import until

VERSIONS = ("2.9", "2.15")


class Client:
    """An ordinary client of a server: what other people's programs are."""

    def __init__(self, server: Server) -> None:
        with dial(server.address) as line:
            self.session = Session(line, 30.0)
        self.bodies: list[bytes] = []
        self.messages: list[wire.Msg] = []

    def subscribe(self, subject: str, queue: str = "") -> None:
        self.session.say(wire.sub(subject.encode(), self.session.sid(self), queue.encode()))
        self.told()

    def publish(self, subject: str, *bodies: bytes) -> None:
        """Returns when the server has them."""
        for body in bodies:
            self.session.say(wire.pub(subject.encode(), body))
        self.told()

    def told(self) -> None:
        """The server has read all that was said."""
        read: list[bool] = []
        self.session.ping(lambda: read.append(True))
        until(lambda: read)

    def heard(self, messages: list[wire.Msg], at: float) -> None:
        self.messages += messages
        self.bodies += [message.body for message in messages]

    def lost(self, error: Exception) -> None:
        """A server went away."""

    def turn(self) -> None: ...


class Cluster:
    """Servers that are routed to one another, and peers of theirs."""

    def __init__(self, start: Callable[..., Server]) -> None:
        self._start = start
        self.servers: list[Server] = []
        self.routes: list[int] = []
        self._held: list[Held] = []
        self._transports: list[Any] = []
        self._producers: list[Any] = []
        self._clients: list[Client] = []

    def add(
        self, version: str = "2.15", *, cluster: str = "name: C1", config: str = "", seeds: Sequence[int] = (), login: str = ""
    ) -> Server:
        """One more server; it dials the route ports ``seeds``, or those that there are."""
        port = free_port()
        known = ", ".join(f'"nats-route://{login}127.0.0.1:{one}"' for one in seeds or self.routes)
        block = f'cluster {{ {cluster}\n listen: "127.0.0.1:{port}"\n routes: [{known}] }}'
        server = self._start(f"{block}\n{config}", version=version, jetstream=False)
        await_port(port)
        self.servers.append(server)
        self.routes.append(port)
        return server

    def url(self, *numbers: int, options: str = "", login: str = "") -> str:
        """Of those servers; of all."""
        ports = [self.routes[number] for number in numbers] or self.routes
        return f"nats-route://{login}{','.join(f'127.0.0.1:{port}' for port in ports)}{options}"

    def open(self, *numbers: int, options: str = "", login: str = "", url: str = "") -> Any:
        (transport,) = open_transports([url or self.url(*numbers, options=options, login=login)])
        self._transports.append(transport)
        return transport

    def hold(
        self, transport: Any, topic: str = "orders", channel: str = "billing", *, grant: int = 10, capacity: int = 10
    ) -> Held:
        """A connection that no worker uses; its receiver forgives nothing."""

        def connect(receiver: Any) -> Any:
            receiver.capacity = capacity
            (node,) = transport.discover(topic, channel)
            return transport.connect(node, topic, channel, receiver)

        held = Held(connect)
        if grant:
            held.grant(grant)
        self._held.append(held)
        return held

    def producer(self, transport: Any) -> Any:
        self._producers.append(transport.producer())
        return self._producers[-1]

    def client(self, number: int = 0) -> Client:
        self._clients.append(Client(self.servers[number]))
        return self._clients[-1]

    def close(self) -> None:
        for held in self._held:
            held.connection.close()
        until(lambda: all(held.receiver.closings for held in self._held))
        for closing in (*self._producers, *self._transports):
            closing.close()
        for client in self._clients:
            client.session.close()
        for held in self._held:
            held.check()


def peer_of(transport: Any) -> Any:
    """The peer of a transport with one cluster."""
    (home,) = transport._homes.there()
    return home.peer


def routed(transport: Any) -> set[str]:
    """The names of the servers that it has routes to."""
    return {route.info.server_name for route in peer_of(transport).routes}


@pytest.fixture
def make_cluster(start_nats: Callable[..., Server]) -> Iterator[Callable[..., Cluster]]:
    """``make_cluster("2.9", "2.15")``; without versions it has no server yet."""
    made: list[Cluster] = []

    def make(*versions: str) -> Cluster:
        made.append(Cluster(start_nats))
        for version in versions:
            made[-1].add(version)
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture(params=VERSIONS)
def one(request: pytest.FixtureRequest, make_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster of one server, of either version."""
    return make_cluster(request.param)


def refusal(transport, kind: type[Exception] = BrokerRefuses) -> str:
    with pytest.raises(kind) as refused:
        transport.probe()
    assert "\n" not in str(refused.value)
    assert "hush" not in str(refused.value)
    return str(refused.value)


@pytest.fixture(scope="module")
def cluster_of_streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    try:
        made = Streams(tmp_path_factory.mktemp("streams"))
    except ServerMissing as error:
        missing(str(error))
        raise
    for server in made.servers:
        server.start()
    yield made
    for server in made.servers:
        server.kill()


@pytest.fixture
def streams(cluster_of_streams: Streams) -> Iterator[Streams]:
    yield cluster_of_streams
    cluster_of_streams.close()
