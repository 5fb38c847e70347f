"""A topic that nobody may write to, or a master that is taken out of service (``mqadmin wipeWritePerm``): no broker looks at
that, so its publishers do. Here with a broker whose answers are made up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from framework.errors import PublishError
from framework.transports import open_transports
from framework.transports.rocketmq import administration, judgement, publish_link
from framework.transports.rocketmq.wire.codes import Request
from tests.transports.rocketmq.canned import NAME, Canned
from tests.transports.rocketmq.kit import until


class Permitting(Canned):
    """``perm``: of its topic, by broker. Both brokers are this one."""

    def __init__(self) -> None:
        super().__init__(0)
        self.perm = {NAME: 6, "other": 6}
        self.names_broke = False
        self.others = {"other": {**self._broker, "brokerName": "other"}}

    def _route(self, topic: str) -> tuple[int, Mapping[str, str], bytes]:
        if self.names_broke:
            return 1, {}, b""
        code, fields, body = super()._route(topic)
        if body:
            route = json.loads(body)
            (queues,) = route["queueDatas"]
            route["queueDatas"] = [{**queues, "brokerName": name, "perm": perm} for name, perm in self.perm.items()]
            route["brokerDatas"] += self.others.values()
            body = json.dumps(route).encode()
        return code, fields, body

    @property
    def sent(self) -> int:
        return self.asked[Request.SEND_MESSAGE_V2] + self.asked[Request.SEND_BATCH_MESSAGE]


@pytest.fixture
def server() -> Iterator[Permitting]:
    made = Permitting()
    yield made
    made.close()


@pytest.fixture
def producer(server: Permitting) -> Iterator[Any]:
    (transport,) = open_transports([f"rocketmq://{server.address}"])
    made = transport.producer()
    yield made
    made.close()
    transport.close()


@pytest.mark.parametrize("bodies", [[b"one"], [b"one", b"two"]])
def test_what_no_master_may_take_is_refused_in_a_sentence(server: Permitting, producer: Any, bodies: list[bytes]) -> None:
    """It was published: whoever closes a topic waits until it is empty, and deletes it."""
    server.perm = {NAME: 4, "other": 4}
    with pytest.raises(PublishError, match=r"takes no messages on RocketMQ's (canned|other), where its perm is 4") as failed:
        producer.publish(server.topic, bodies, timeout=20.0)
    assert (failed.value.stored, server.sent) == (False, 0)


def test_it_goes_to_the_master_that_takes_it(server: Permitting, producer: Any) -> None:
    server.perm = {NAME: 4, "other": 6}
    for _ in range(5):
        producer.publish(server.topic, [b"one"])
    assert server.sent == 5
    assert producer._publishing.here()._link.node == "other"


def test_a_publisher_leaves_a_master_that_is_taken_out_of_service(
    server: Permitting, producer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_link, "ROUTED", 0.0)
    producer.publish(server.topic, [b"one"])
    first = producer._publishing.here()._link.node
    server.perm[first] = 4

    def moved() -> bool:
        producer.publish(server.topic, [b"more"])
        return bool(producer._publishing.here()._link.node != first)

    until(moved)


def test_of_a_topic_that_nobody_may_read_that_is_said(server: Permitting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker only said that no node has the topic yet."""
    monkeypatch.setattr(administration, "groups_of", lambda *_: [])
    server.perm = {NAME: 2, "other": 6}
    (transport,) = open_transports([f"rocketmq://{server.address}"])
    said = {one.node: [note for note in one.notes if "nobody" in note] for one in transport.describe(server.topic, "billing")}
    transport.close()
    assert said == {NAME: [judgement.unreadable(server.topic, NAME, 2)], "other": []}


def test_one_that_is_not_told_publishes_on(server: Permitting, producer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server.names_broke = True
    monkeypatch.setattr(publish_link, "ROUTED", 0.0)
    for _ in range(3):
        producer.publish(server.topic, [b"one"])
    assert server.sent == 3
