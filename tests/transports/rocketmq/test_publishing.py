"""Publishing to a real RocketMQ: many messages in one request, and what is given up in the broker's own ``%DLQ%``."""

from __future__ import annotations

from typing import Any

import pytest

from framework.publisher import Publisher
from framework.transports import open_transports
from framework.transports.rocketmq import requests
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.queues import Place
from framework.transports.rocketmq.wire import properties
from framework.transports.rocketmq.wire.codes import Request
from framework.transports.rocketmq.wire.stored import Stored, decode_all
from tests.transports.rocketmq.kit import Kit, until

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_many_messages_go_in_few_requests_and_each_comes_once_with_its_headers(kit: Kit) -> None:
    held = kit.hold(kit.open(), grant=3000)
    publisher = Publisher([kit.open()])
    sent = [b"%d-%b" % (number, b"x" * (number % 300)) for number in range(2500)]
    assert publisher.publish_many(kit.topic, sent, headers={"TAGS": "new", "empty": ""}) == 2500
    publisher.close()
    until(lambda: len(held.taken) >= 2500)
    assert sorted(held.bodies) == sorted(sent)
    assert {(one.headers["TAGS"], one.headers["empty"]) for one in held.taken} == {("new", "")}
    assert len({one.id for one in held.taken}) == 2500
    for message in held.taken:
        held.connection.finish(message)
    until(held.balanced)


def test_messages_that_fill_a_request_to_its_last_byte_are_stored(kit: Kit) -> None:
    kit.open().ensure(kit.topic, [])
    largest = 4 * 1024 * 1024
    kit.publish(b"x" * largest, b"small")
    kit.publish(*[b"x" * 1000] * 9000, headers={"a": "b" * 100})
    kit.publish(*[b"x" * (largest // 2 - size) for size in (0, 100, 150, 200, 300, 400)])
    assert sum(kit.open("&mode=pull").backlog(kit.topic, "billing").values()) == 2 + 9000 + 6


def test_a_topic_that_was_deleted_in_its_broker_alone_is_made_again_by_who_publishes(kit: Kit) -> None:
    """A name server keeps its route for as long as the broker is there. Publishes failed after 30 s, one after the other."""
    publisher = Publisher([kit.open()])
    publisher.publish(kit.topic, b"before")
    with kit.open()._sessions.use(kit.server.broker.address) as session:
        session.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": kit.topic_there})
    assert publisher.publish_each(kit.topic, [b"%d" % number for number in range(100)]) == [None] * 100
    publisher.close()
    assert sum(kit.open("&mode=pull").backlog(kit.topic, "billing").values()) == 100


@pytest.mark.parametrize("mode", ["", "&mode=pull"], ids=["by POP", "by PULL"])
def test_what_is_given_up_is_in_the_brokers_own_queue_as_well_where_that_is_asked_for(kit: Kit, mode: str) -> None:
    transport = kit.open(f"{mode}&dlq=true")
    channel = f"given-up-{kit.topic}"
    held = kit.hold(transport, channel)
    kit.publish(b"poison", headers={"KEYS": "k7"})
    until(lambda: held.taken)
    connection: Any = held.connection
    connection.terminate(held.taken[0])
    until(lambda: held.tally.finished == 1)
    (dead,) = until(lambda: dead_letters(kit, connection.subscription.group))
    found = properties.decode(dead.properties.decode())
    assert (dead.body, found["KEYS"], found["UNIQ_KEY"].encode()) == (b"poison", "k7", held.taken[0].id)
    until(lambda: sum(transport.backlog(kit.topic, channel).values()) == 0)


def test_what_is_given_up_is_only_finished_where_nobody_asked_for_more(kit: Kit) -> None:
    channel = f"plain-{kit.topic}"
    held = kit.hold(kit.open(), channel)
    kit.publish(b"poison")
    until(lambda: held.taken)
    connection: Any = held.connection
    connection.terminate(held.taken[0])
    until(lambda: held.tally.finished == 1)
    assert dead_letters(kit, connection.subscription.group) == []


def dead_letters(kit: Kit, group: str) -> list[Stored]:
    """What its ``%DLQ%`` has; it is one queue."""
    topic = f"%DLQ%{group}"
    (transport,) = open_transports([f"rocketmq://{kit.server.address}"])
    try:
        if not transport._servers.route(topic):
            return []
        place = Place(topic, kit.server.name, 0)
        with transport._sessions.use(kit.server.broker.address) as session:
            fields = requests.pull(Subscription(topic, "look"), place, 0, 10, 0.0)
            return decode_all(session.ask(Request.PULL_MESSAGE, fields).body)
    finally:
        transport.close()
