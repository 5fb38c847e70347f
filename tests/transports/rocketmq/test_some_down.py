"""RocketMQ of several masters, of which one is gone and is still named: what it is asked for all of them. Its answers are made
up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from framework.errors import SomeUnreachable
from framework.testing.servers import free_port
from framework.transports import open_transports
from framework.transports.rocketmq import administration
from tests.transports.rocketmq.canned import NAME, Canned


class WithOneGone(Canned):
    """Its name server names ``gone`` as well, for every topic that there is."""

    def __init__(self) -> None:
        super().__init__(0)
        self.gone = {"brokerName": "gone", "brokerAddrs": {"0": f"127.0.0.1:{free_port()}"}, "cluster": "c"}
        self.others = {"gone": self.gone}

    def _route(self, topic: str) -> tuple[int, Mapping[str, str], bytes]:
        code, fields, body = super()._route(topic)
        if body:
            route = json.loads(body)
            route["queueDatas"] += [{**route["queueDatas"][0], "brokerName": "gone"}]
            route["brokerDatas"] += [self.gone]
            body = json.dumps(route).encode()
        return code, fields, body


@pytest.fixture
def server() -> Iterator[WithOneGone]:
    made = WithOneGone()
    yield made
    made.close()


@pytest.fixture
def transport(server: WithOneGone) -> Iterator[Any]:
    (made,) = open_transports([f"rocketmq://{server.address}"])
    yield made
    made.close()


def test_what_waits_is_said_of_those_that_answer(server: WithOneGone, transport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a plain error, whoever asks what waits in a .later topic saw nothing: each wait counted as an attempt."""
    monkeypatch.setattr(administration, "waiting", lambda *_: 7)
    with pytest.raises(SomeUnreachable) as failed:
        transport.backlog(server.topic, "billing")
    assert (failed.value.down, failed.value.answers) == ({"gone"}, {NAME: 7})


def test_so_are_the_channels(server: WithOneGone, transport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "groups_of", lambda *_: ["billing", "audit"])
    with pytest.raises(SomeUnreachable) as failed:
        transport.channels(server.topic)
    assert failed.value.answers == {"billing", "audit"}


def test_a_topic_is_made_where_it_can_be(server: WithOneGone, transport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(session: Any, topics: list[str]) -> dict[str, Any]:
        made.extend(topics)
        server.topic = topics[0]
        return {}

    monkeypatch.setattr(administration, "make_topics", make)
    with pytest.raises(SomeUnreachable) as failed:
        transport.ensure("new", ["billing"])
    assert failed.value.down == {"gone"}
    assert made == ["new"]
    server.topic = "other"
    transport.make_on(NAME, "newer")  # for a publish, which goes there
    assert made == ["new", "newer"]
