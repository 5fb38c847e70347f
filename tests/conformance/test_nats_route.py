"""The conformance suite over routes of real nats-servers, 2.9 and 2.15: the chapters that fit a broker which keeps nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from framework.testing import servers
from framework.testing.conformance import Core, Faults, Node, Publishing, Subject
from tests.conformance.endings import Endings
from tests.conformance.nats_servers import AT_LENGTH, INVALID_NAMES, served, versions

pytestmark = pytest.mark.real


class RouteNode(Node):
    def __init__(self, server: servers.Server, port: int) -> None:
        self._server = server
        self._port = port
        self.address = f"127.0.0.1:{port}"
        self.url = f"nats-route://{self.address}"

    def up(self) -> None:
        self._server.start()
        servers.await_port(self._port)

    def down(self) -> None:
        self._server.kill()


class Routes(Subject):
    """One server each: a cluster of its own."""

    silence = 1.0
    wrong_urls = (
        "nats-route://host/topic",
        "nats-route://host?nope=1",
        "nats-route://host:port",
        "nats-route://me@host",
        "nats-route://host?cluster=a b",
        "nats-route://host?ping_interval=soon",
        "nats-route://host?listen=10.0.0.1,10.0.0.2",
        "nats-route://host?tls_ca=/nowhere.pem",
    )
    invalid_names = INVALID_NAMES

    def __init__(self, tmp_path_factory: pytest.TempPathFactory, version: str) -> None:
        super().__init__()
        self._folders = tmp_path_factory
        self._version = version

    def make(self, *, brief: bool) -> Node:
        port = servers.free_port()
        block = f'cluster {{ name: C1, listen: "127.0.0.1:{port}" }}'
        server = servers.real_nats(self._folders.mktemp("nats"), block, version=self._version, jetstream=False)
        return RouteNode(server, port)

    def watchful(self, url: str) -> str:
        return f"{url}?ping_interval=500ms"


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routes]:
    with served(Routes, tmp_path_factory, request.param) as made:
        yield made


@versions(older=AT_LENGTH)
class TestPublishing(Publishing):
    """To a server each of these is a message like any other."""


@versions()
class TestNatsRoute(Core, Endings):
    """What is promised where each message comes once. The other cases of faults, and leases and crashes, speak of what is
    delivered again."""

    test_away = Faults.test_a_broker_that_was_away_is_used_again
    test_other_down = Faults.test_a_node_that_is_down_does_not_pause_the_other
    test_no_answer = Faults.test_a_broker_that_never_answers_ends_the_worker_at_its_deadline
    test_cut_handshake = Faults.test_a_cut_during_the_handshake_is_only_another_attempt
    test_slow_network = Faults.test_a_slow_network_only_takes_longer
    test_byte_by_byte = Faults.test_a_network_that_brings_a_byte_at_a_time_changes_nothing
    test_silence = Faults.test_a_connection_whose_peer_fell_silent_is_given_up_and_made_anew
