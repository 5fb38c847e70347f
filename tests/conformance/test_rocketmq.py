"""The core of the conformance suite over a real RocketMQ 5.3.3, by POP and by PULL. One broker is shared by all cases, and stays
up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from framework.testing.conformance import Core, Node, Subject
from framework.testing.rocketmq import RocketMQ

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


class TestRocketMQ(Core):
    options = ""


class TestRocketMQByPull(Core):
    options = "&mode=pull"
