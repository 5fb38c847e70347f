"""How often many handlers by PULL ask a real RocketMQ to be subscribed, and while nothing comes: whatever the load."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gevent
import pytest

from framework.testing.conformance.receiver import Held
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.wire.codes import Request
from tests.transports.rocketmq.kit import Kit, until

pytestmark = [pytest.mark.real, pytest.mark.slow]
MANY = 60


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The requests of this process, and the bytes of their heartbeats."""
    counts: Counter[str] = Counter()
    encoded = Session._encoded

    def count(session: Session, code: int, fields: dict[str, str], body: bytes, number: int) -> bytes:
        counts[Request(code).name] += 1
        if code == Request.HEART_BEAT:
            counts["beaten"] += len(body)
        return encoded(session, code, fields, body, number)

    monkeypatch.setattr(Session, "_encoded", count)
    return counts


def test_many_handlers_share_what_they_ask_to_be_subscribed_and_are_quiet_then(kit: Kit, asked: Counter[str]) -> None:
    transport = kit.open("&mode=pull")
    transport.start(gevent.get_hub())
    held: list[Held] = []

    def subscribe(number: int) -> None:
        topic = f"{kit.topic}-{number}"
        transport.ensure(f"{topic}.billing.dead", [])
        transport.ensure(topic, ["billing"])
        until(lambda: transport.discover(topic, "billing"))
        one = Held(lambda receiver: transport.connect(kit.server.name, topic, "billing", receiver))
        one.grant(10)
        held.append(one)

    def complete(one: Held) -> bool:
        connection: Any = one.connection
        return len(connection.readings) == 5  # of its topic, and of what comes again

    gevent.joinall([gevent.spawn(subscribe, number) for number in range(MANY)], raise_error=True)
    until(lambda: all(map(complete, held)), 60.0)
    assert len(held) == MANY
    assert asked["UPDATE_AND_CREATE_TOPIC"] + asked["UPDATE_AND_CREATE_TOPIC_LIST"] <= 10
    assert asked["QUERY_CONSUMER_OFFSET"] <= 5.5 * MANY
    assert asked["LOCK_BATCH_MQ"] <= 1.5 * MANY
    assert asked["GET_ROUTEINFO_BY_TOPIC"] <= 8 * MANY
    assert asked["beaten"] <= 2000 * MANY
    before = Counter(asked)
    gevent.sleep(10.0)
    in_ten_seconds = (asked - before).total() - (asked - before)["beaten"]
    assert in_ten_seconds <= 7 * MANY, asked - before
    for one in held:
        one.connection.close()
    until(lambda: all(one.receiver.closings for one in held))


def test_many_channels_of_a_topic_that_was_there_have_their_retry_topics_made_together(kit: Kit, asked: Counter[str]) -> None:
    """A broker makes each when its group subscribes, and writes all topics down each time: a thousand in four minutes."""
    kit.open("&mode=pull").ensure(kit.topic, [])
    transport = kit.open("&mode=pull")
    transport.start(gevent.get_hub())
    before = Counter(asked)
    channels = [f"mail-{number}" for number in range(MANY)]
    gevent.joinall([gevent.spawn(transport.ensure, kit.topic, [channel]) for channel in channels], raise_error=True)
    made = asked - before
    assert made["UPDATE_AND_CREATE_TOPIC"] + made["UPDATE_AND_CREATE_TOPIC_LIST"] <= 5
    retry_topics = {f"%RETRY%{kit.topic_there}|{channel}" for channel in channels}
    until(lambda: retry_topics <= set(transport._servers.topics()))
