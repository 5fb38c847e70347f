"""The faults of the conformance suite over real RocketMQs whose broker is killed and started again: by POP, with checkpoints in
RocksDB (KV mode) and in files, and by PULL. At length: each case waits for a Java machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from framework.testing.conformance import Faults, Node, Subject
from framework.testing.rocketmq import PROMPT, RocketMQ, real_rocketmq
from framework.testing.servers import ServerMissing
from tests.conftest import missing

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]


class OwnNode(Node):
    """Down is a kill -9 of the broker. Its name server stays up: it forgets the broker in that moment."""

    def __init__(self, server: RocketMQ, options: str) -> None:
        self._server = server
        self.url = f"rocketmq://{server.address}?poll=200ms{options}"

    def up(self) -> None:
        if self._server.name_server.process is None:
            self._server.start()
        elif self._server.broker.process is None:  # else it is up as the other kind of node
            self._server.broker.start()

    def down(self) -> None:
        self._server.broker.kill()

    def cut(self) -> None:
        pytest.skip("a name server says where its broker is, so there is no proxy between")


class KilledServers(Subject):
    brief = 5.0
    max_late = 20.0
    largest = 4 * 1024 * 1024

    def __init__(self, server: RocketMQ, options: str) -> None:
        super().__init__()
        self._server, self._options = server, options

    def make(self, *, brief: bool) -> Node:
        """Leases are an option of the URL, so one server serves as both kinds of node."""
        return OwnNode(self._server, self._options + (f"&lease={self.brief:g}s" if brief else ""))

    def __exit__(self, *_: object) -> None:
        self._server.kill()


@pytest.fixture(scope="class")
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    try:
        server = real_rocketmq(tmp_path_factory.mktemp("killed"), request.cls.settings)
    except ServerMissing as error:
        missing(str(error))
        raise
    with KilledServers(server, request.cls.options) as made:
        yield made


class Killed(Faults):
    """Name servers of several URLs are of one RocketMQ, so two nodes of the suite cannot be two brokers."""

    test_a_node_that_is_down_does_not_pause_the_other = None  # type: ignore[assignment]


class TestRocketMQ(Killed):
    settings = PROMPT
    options = ""


class TestRocketMQInFiles(Killed):
    settings: Mapping[str, str] = {}
    options = ""


class TestRocketMQByPull(Killed):
    settings = PROMPT
    options = "&mode=pull"
