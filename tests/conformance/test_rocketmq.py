"""The conformance suite over a real RocketMQ 5.3.3, by POP and by PULL. One broker is shared by all cases, and stays up: so
chapters and cases that end it, or need a second one, are not here. At length all chapters are by each, and by POP with
checkpoints in files as well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from framework.testing.conformance import Core, Crashes, Leases, Node, Publishing, Subject
from framework.testing.rocketmq import RocketMQ, real_rocketmq
from framework.testing.servers import ServerMissing
from tests.conformance.endings import Endings
from tests.conftest import missing

pytestmark = [pytest.mark.real, pytest.mark.slow]


class RocketNode(Node):
    """The URL is the name server's, which says where the broker is: so a proxy could not be put before that."""

    def __init__(self, address: str, options: str) -> None:
        self.url = f"rocketmq://{address}?poll=200ms{options}"

    def up(self) -> None: ...

    def down(self) -> None: ...


class RocketServers(Subject):
    largest = 4 * 1024 * 1024
    wrong_urls = (
        "rocketmq://host/topic",
        "rocketmq://host?nope=1",
        "rocketmq://host?lease=soon",
        "rocketmq://host:port",
        "rocketmq://me@host",
        "rocketmq://host?poll=1h",
        "rocketmq://host?tags=a b",
        "rocketmq://host?namespace=a.b",
        "rocketmq://host?mode=push",
    )
    invalid_names = ("orders#ephemeral", "." * 64)

    def __init__(self, server: RocketMQ, options: str = "") -> None:
        super().__init__()
        self._server = server
        self._options = options
        self.hands_on_at_once = "pull" not in options

    def make(self, *, brief: bool) -> Node:
        return RocketNode(self._server.address, self._options + (f"&lease={self.brief:g}s" if brief else ""))


@pytest.fixture(scope="class")
def subject(request: pytest.FixtureRequest, rocketmq: RocketMQ) -> Iterator[RocketServers]:
    with RocketServers(rocketmq, request.cls.options) as made:
        yield made


class OneNode(Publishing):
    """What needs no second broker."""

    test_one_worker_handles_what_is_on_each_of_two_nodes = None  # type: ignore[assignment]
    test_while_one_node_is_down_publishing_goes_to_the_other = None  # type: ignore[assignment]


class TestRocketMQ(Core, OneNode, Leases, Crashes, Endings):
    options = ""


class TestRocketMQByPull(Core, Endings):
    options = "&mode=pull"


@pytest.mark.at_length
class TestRocketMQByPullAtLength(OneNode, Leases, Crashes):
    """A message has no lease: it is its worker's until that ends, and the end of a worker costs it no attempt."""

    options = "&mode=pull"
    test_a_message_that_kills_every_worker_is_counted_and_ends_as_a_dead_letter = None  # type: ignore[assignment]
    test_a_lease_that_is_touched_keeps_a_rival_away_and_one_that_is_not_ends_on_time = None  # type: ignore[assignment]
    test_a_call_that_outlives_its_timeout_loses_its_message_which_comes_again_and_is_counted = None  # type: ignore[assignment]


class ServersInFiles(RocketServers):
    """As a broker is configured by default: what comes again is late."""

    max_late = 20.0


@pytest.mark.at_length
class TestRocketMQInFiles(Core, OneNode, Leases, Crashes):
    @pytest.fixture(scope="class")
    @staticmethod
    def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketServers]:
        try:
            server = real_rocketmq(tmp_path_factory.mktemp("files"), {})
        except ServerMissing as error:
            missing(str(error))
            raise
        server.start()
        with ServersInFiles(server) as made:
            yield made
        server.kill()
