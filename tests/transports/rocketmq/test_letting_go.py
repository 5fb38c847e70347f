"""Queues that a handler by PULL lets go while it is granted nothing: when all of theirs is settled, each committed once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from framework.errors import BrokerUnreachable
from framework.testing.conformance.receiver import Held
from framework.transports import open_transports
from framework.transports.rocketmq import pulling
from framework.transports.rocketmq.wire.codes import Request
from tests.transports.rocketmq.canned import NAME, QUEUES, Canned
from tests.transports.rocketmq.kit import until


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Canned, Held]]:
    """With one message of each queue in flight, and granted nothing for so long that it leaves them."""
    monkeypatch.setattr(pulling, "PAUSED", 0.05)
    monkeypatch.setattr(pulling, "LOOK", 0.02)
    server = Canned(1)
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull&poll=200ms"])
    one = Held(lambda receiver: transport.connect(NAME, server.topic, "billing", receiver))
    one.grant(QUEUES)
    until(lambda: len(one.taken) == QUEUES)
    one.grant(0)
    connection: Any = one.connection
    until(lambda: len(connection.readings) == QUEUES and all(reading.leaving for reading in connection.readings.values()))
    yield server, one
    one.connection.close()
    transport.close()
    server.close()


def test_a_queue_is_let_go_once_its_messages_are_finished_and_committed_once(held: tuple[Canned, Held]) -> None:
    server, one = held
    connection: Any = one.connection
    gevent.sleep(0.2)
    assert len(connection.readings) == QUEUES, "what is in flight is still to be settled"
    before, unlocked = server.asked[Request.UPDATE_CONSUMER_OFFSET], server.asked[Request.UNLOCK_BATCH_MQ]
    for message in list(connection.in_flight):
        one.connection.finish(message)
    until(lambda: not connection.readings)
    assert server.committed == dict.fromkeys(range(QUEUES), 1)
    assert server.asked[Request.UPDATE_CONSUMER_OFFSET] == before + QUEUES
    assert server.asked[Request.UNLOCK_BATCH_MQ] > unlocked
    assert one.balanced()
    one.check()


def test_a_queue_is_let_go_once_what_was_requeued_is_with_the_broker(held: tuple[Canned, Held]) -> None:
    server, one = held
    connection: Any = one.connection
    for message in list(connection.in_flight):
        one.connection.requeue(message, 5.0)
    until(lambda: not connection.readings)
    assert server.asked[Request.CONSUMER_SEND_MSG_BACK] == QUEUES
    until(one.balanced)
    assert (one.tally.requeued, one.tally.finished) == (QUEUES, 0)
    one.check()


@pytest.mark.parametrize("requeued", [0, 1, QUEUES])
def test_what_was_not_sent_back_when_the_broker_went_is_counted_as_lost(held: tuple[Canned, Held], requeued: int) -> None:
    _, one = held
    connection: Any = one.connection
    for message in list(connection.in_flight)[:requeued]:
        one.connection.requeue(message, 5.0)
    connection.lost(BrokerUnreachable("away"))
    assert (one.tally.received, one.tally.lease_lost, one.tally.requeued, one.tally.finished) == (QUEUES, QUEUES, 0, 0)
    assert one.balanced()
    one.check()
