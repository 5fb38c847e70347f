"""The conformance suite over real nats-servers, 2.9 and 2.15, with JetStream on files, which go down by SIGKILL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from framework.testing import servers
from framework.testing.conformance import Bench, Core, Crashes, Faults, Leases, Node, Publishing
from tests.conformance.endings import Endings
from tests.conformance.nats_servers import AT_LENGTH, JetStream, doubles, served, versions

pytestmark = pytest.mark.real
__all__ = ["doubles"]


class NatsNode(Node):
    def __init__(self, server: servers.Server, options: str) -> None:
        self._server = server
        self.address = server.address
        self.url = f"nats://{server.address}{options}"

    def up(self) -> None:
        self._server.start()

    def down(self) -> None:
        self._server.kill()


class NatsServers(JetStream):
    """One server each: a cluster of its own."""

    wrong_urls = (
        "nats://host/topic",
        "nats://host?nope=1",
        "nats://host?ack_wait=soon",
        "nats://host:port",
        "nats://me:@host",
        "nats://host?replicas=2",
    )

    def make(self, *, brief: bool) -> Node:
        server = servers.real_nats(self._folders.mktemp("nats"), version=self._version)
        return NatsNode(server, f"?ack_wait={self.brief:g}s" if brief else "")


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with served(NatsServers, tmp_path_factory, request.param) as made:
        yield made


@versions(older=AT_LENGTH)
class TestPublishing(Publishing):
    """What servers differ in is held beside it: ``publish(delay=)`` in the transport's own tests, headers on the wire too."""


@versions()
class TestNats(Core, Leases, Faults, Crashes, Endings):
    """All other chapters."""

    @pytest.mark.usefixtures("doubles")
    def test_one_message_of_a_batch_may_fail_alone_and_another_be_rejected(self, bench: Bench) -> None:
        super().test_one_message_of_a_batch_may_fail_alone_and_another_be_rejected(bench)

    @pytest.mark.slow
    @pytest.mark.usefixtures("doubles")
    def test_a_worker_told_to_stop_in_the_middle_finishes_or_gives_back_all_and_nothing_is_handled_twice(
        self, bench: Bench
    ) -> None:
        super().test_a_worker_told_to_stop_in_the_middle_finishes_or_gives_back_all_and_nothing_is_handled_twice(bench)
