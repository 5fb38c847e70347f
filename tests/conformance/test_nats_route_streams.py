"""The conformance suite over JetStream by routes: two real nats-servers that keep streams together, which go down by SIGKILL.

Where the network is at fault, all routes lead through proxies, and servers are told to dial the worker where nobody listens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.testing import servers
from framework.testing.conformance import Bench, Core, Crashes, Faults, Leases, Node, Publishing
from tests.conformance.nats_servers import AT_LENGTH, JetStream, doubles, served, versions

pytestmark = pytest.mark.real
__all__ = ["doubles"]
NOWHERE = "127.0.0.1:1"


class ClusterNode(Node):
    """The smallest cluster that keeps streams."""

    def __init__(self, folder: Path, version: str, options: str) -> None:
        ports = [servers.free_port() for _ in range(2)]
        self._ports = ports
        self._servers = [_member(folder / f"member-{port}", port, ports, version) for port in ports]
        self.address = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.url = f"nats-route://{self.address}?jetstream=true&advertise={NOWHERE}{options}"

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


class Streams(JetStream):
    """Clusters of two."""

    counts_what_was_sent = False  # routes tell nobody how far they were read

    wrong_urls = (
        "nats-route://host?jetstream=perhaps",
        "nats-route://host?ack_wait=5s",
        "nats-route://host?jetstream=true&ack_wait=soon",
        "nats-route://host?jetstream=true&replicas=2",
        "nats-route://host?jetstream=true&backlog=5",
    )

    def make(self, *, brief: bool) -> Node:
        return ClusterNode(self._folders.mktemp("nats"), self._version, f"&ack_wait={self.brief:g}s" if brief else "")


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    with served(Streams, tmp_path_factory, request.param) as made:
        yield made


@versions(older=AT_LENGTH)
class TestNatsRouteStreams(Core):
    """What a peer says itself: pulls, settlements, and touches in the hub's place."""

    test_rescue = Leases.test_a_call_that_computes_for_longer_than_its_lease_costs_no_message_where_connections_can_be_rescued
    test_restarted = Faults.test_a_broker_that_ends_in_the_middle_and_comes_back_loses_none
    test_cuts_from_servers = Faults.test_cuts_in_the_middle_of_what_the_broker_sends_lose_none
    test_cuts_to_servers = Faults.test_cuts_in_the_middle_of_what_the_worker_sends_lose_none

    @pytest.mark.usefixtures("doubles")
    def test_one_message_of_a_batch_may_fail_alone_and_another_be_rejected(self, bench: Bench) -> None:
        super().test_one_message_of_a_batch_may_fail_alone_and_another_be_rejected(bench)


@versions(older=AT_LENGTH, newer=AT_LENGTH)
class TestMore(Publishing, Leases, Faults, Crashes):
    """What is the same code as a client's, and the faults in full."""
