"""The faults of the conformance suite over real RocketMQs whose broker is killed and started again, and whose network breaks: by
POP, with checkpoints in RocksDB (KV mode) and in files, and by PULL, also of 4.9. At length: each case waits for Java."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from framework.testing.conformance import Faults, Node, Subject
from framework.testing.detour import Detour, through
from framework.testing.proxies import Proxies
from framework.testing.rocketmq import OLDER, PROMPT, VERSION, RocketMQ, real_rocketmq
from framework.testing.servers import ServerMissing
from tests.conftest import missing

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]


class OwnNode(Node):
    """Down is a kill -9 of the broker. Its name server stays up: it forgets the broker in that moment."""

    def __init__(self, server: RocketMQ, options: str) -> None:
        self._server = server
        self._options = options
        self._detours: list[Detour] = []
        self.address = server.address
        self.url = f"rocketmq://{server.address}?poll=200ms{options}"

    def proxied(self) -> tuple[Proxies, str]:
        """Before the name server and the broker."""
        proxies, address, detour = through(self.address, [self._server.broker.address])
        self._detours.append(detour)
        return proxies, f"rocketmq://{address}?poll=200ms{self._options}"

    def up(self) -> None:
        if self._server.name_server.process is None:
            self._server.start()
        elif self._server.broker.process is None:  # else it is up as the other kind of node
            self._server.broker.start()

    def down(self) -> None:
        self._server.broker.kill()

    def end(self) -> None:
        for detour in self._detours:
            detour.stop()


class KilledServers(Subject):
    brief = 5.0
    max_late = 20.0
    silence = 3.0
    counts_what_was_sent = False
    """A broker does not say how much is in flight there, so nothing seems left while what was cut off waits for its lease."""
    largest = 4 * 1024 * 1024

    def __init__(self, server: RocketMQ, options: str) -> None:
        super().__init__()
        self._server, self._options = server, options
        self._made: list[OwnNode] = []

    def make(self, *, brief: bool) -> Node:
        """Leases are an option of the URL, so one server serves as both kinds of node."""
        self._made.append(OwnNode(self._server, self._options + (f"&lease={self.brief:g}s" if brief else "")))
        return self._made[-1]

    def watchful(self, url: str) -> str:
        return f"{url}&answer_timeout=1s"

    def __exit__(self, *_: object) -> None:
        for node in self._made:
            node.end()
        self._server.kill()


@pytest.fixture(scope="class")
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    try:
        server = real_rocketmq(tmp_path_factory.mktemp("killed"), request.cls.settings, version=request.cls.version)
    except ServerMissing as error:
        missing(str(error))
        raise
    with KilledServers(server, request.cls.options) as made:
        yield made


class Killed(Faults):
    """Name servers of several URLs are of one RocketMQ, so two nodes of the suite cannot be two brokers."""

    version = VERSION
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


class TestRocketMQ4(Killed):
    settings: Mapping[str, str] = {}
    options = ""
    version = OLDER
