"""The conformance suite over JetStream by routes: two real nats-servers that keep streams together, which go down by SIGKILL.

The cases that cut a connection need one that nothing goes round: a peer has a route to each server, and servers dial it as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.testing import servers
from framework.testing.conformance import Bench, Core, Crashes, Leases, Node, Publishing, Subject
from framework.transports.contract import Capabilities
from framework.transports.nats.outgoing import OVERHEAD
from tests.conformance.test_nats import DOUBLES
from tests.conftest import missing

pytestmark = pytest.mark.real
AT_LENGTH = (pytest.mark.slow, pytest.mark.at_length)


class ClusterNode(Node):
    """The smallest cluster that keeps streams."""

    def __init__(self, folder: Path, version: str, options: str) -> None:
        ports = [servers.free_port() for _ in range(2)]
        self._ports = ports
        self._servers = [_member(folder / f"member-{port}", port, ports, version) for port in ports]
        self.url = f"nats-route://{','.join(f'127.0.0.1:{port}' for port in ports)}?jetstream=true{options}"

    def up(self) -> None:
        for server in self._servers:
            server.start()
        for port in self._ports:
            servers.await_port(port)

    def down(self) -> None:
        for server in self._servers:
            server.kill()


def _member(folder: Path, port: int, ports: list[int], version: str) -> servers.Server:
    folder.mkdir()
    routes = ", ".join(f'"nats-route://127.0.0.1:{one}"' for one in ports)
    block = f'cluster {{ name: C1, listen: "127.0.0.1:{port}", routes: [{routes}] }}'
    return servers.real_nats(folder, block, version=version)


class Streams(Subject):
    """Nodes with short leases are the same clusters: the lease is that of the consumers that are made."""

    largest = (1 << 20) - OVERHEAD
    drops_doubles = True
    wrong_urls = (
        "nats-route://host?jetstream=perhaps",
        "nats-route://host?ack_wait=5s",
        "nats-route://host?jetstream=true&ack_wait=soon",
        "nats-route://host?jetstream=true&replicas=2",
        "nats-route://host?jetstream=true&backlog=5",
    )
    invalid_names = ("orders#ephemeral", "orders..new", ".orders", "orders.")

    def __init__(self, tmp_path_factory: pytest.TempPathFactory, version: str) -> None:
        super().__init__()
        self._folders = tmp_path_factory
        self._version = version
        self._found: Any = None

    def make(self, *, brief: bool) -> Node:
        return ClusterNode(self._folders.mktemp("nats"), self._version, f"&ack_wait={self.brief:g}s" if brief else "")

    def capabilities(self) -> Capabilities:
        """Whether it counts deliveries, and keeps a publish for later, hangs on the version: asked once, while it is up."""
        if self._found is None:
            transport: Any = self.open([self.node().url])
            transport.probe()
            transport.close()
            self._found = transport.capabilities
        return self._found


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    try:
        servers.nats_binary(request.param)
    except servers.ServerMissing as error:
        missing(str(error))
    with Streams(tmp_path_factory, request.param) as made:
        yield made


def versions(*of_the_newer: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """A chapter over both, 2.15 with marks: its cases are those of ``test_nats``, and the older one's are as well."""
    both = [pytest.param("2.9", marks=AT_LENGTH), pytest.param("2.15", marks=of_the_newer)]
    return pytest.mark.parametrize("subject", both, indirect=True, scope="module")


@pytest.fixture
def doubles(request: pytest.FixtureRequest, bench: Bench) -> None:
    """A case that takes no message twice, on a server that may deliver one so."""
    if "2.9" in request.node.name:
        request.applymarker(DOUBLES)
        bench.patience = 10.0


@versions()
class TestNatsRouteStreams(Core):
    """What a peer says itself: pulls, settlements, and touches in the hub's place."""

    test_rescue = Leases.test_a_call_that_computes_for_longer_than_its_lease_costs_no_message_where_connections_can_be_rescued

    @pytest.mark.usefixtures("doubles")
    def test_one_message_of_a_batch_may_fail_alone_and_another_be_rejected(self, bench: Bench) -> None:
        super().test_one_message_of_a_batch_may_fail_alone_and_another_be_rejected(bench)


@versions(*AT_LENGTH)
class TestMore(Publishing, Leases, Crashes):
    """What is the same code as a client's."""
