"""A real RocketMQ that has lost parts of its index, as on a disk that was full: what it still has is handled, though messages say
that they lie elsewhere in their queue than they do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from framework.testing.conformance.receiver import Held
from framework.testing.rocketmq import RocketMQ
from framework.transports.rocketmq.wire.codes import Request
from tests.transports.rocketmq.kit import Kit, started, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]
ENTRY = 20
"""Bytes of the index for a message."""
EACH = 100
LEFT = (30, 60)
"""Of the messages of each queue, those that the index still has when its broker is started again, which goes on behind them."""


def lose_index(server: RocketMQ, topic: str) -> None:
    """It is stopped and started."""
    server.broker.process.terminate()
    server.broker.process.wait(60)
    for queue, left in enumerate(LEFT):
        (file,) = (server.data / f"store-{server.name}" / "consumequeue" / topic / str(queue)).iterdir()
        data = file.read_bytes()
        file.write_bytes(data[: left * ENTRY].ljust(len(data), b"\0"))
    server.broker.start()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RocketMQ]:
    """Killed also where its test fails."""
    yield from started(tmp_path)


@pytest.fixture
def kit(own: RocketMQ) -> Iterator[Kit]:
    made = Kit(own)
    made.topic = made.topic_there = "orders"
    yield made
    made.close()


@pytest.mark.parametrize("mode", ["pop", "pull"])
def test_each_that_is_there_is_handled_once(kit: Kit, mode: str) -> None:
    """By PULL, 24 of 209 never were, and others again and again; by POP, 39 came twice."""
    publish(kit, 0, EACH)
    time.sleep(1.0)  # its index is written
    lose_index(kit.server, kit.topic)
    publish(kit, EACH, EACH + 20)
    there = {b"%d-%d" % (queue, n) for queue in (0, 1) for n in [*range(LEFT[queue]), *range(LEFT[1] + 1, EACH + 20)]}
    held = kit.hold(kit.open(f"&mode={mode}&lease=5s"), grant=1000)
    until(lambda: there <= set(settled(held)), 40.0)
    gevent.sleep(12.0)  # a lease, and as late as what is delivered again may be
    until(lambda: settled(held) and held.balanced(), 40.0)
    assert max(Counter(settled(held)).values()) == 1
    until(lambda: sum(kit.open(f"&mode={mode}").backlog(kit.topic, "billing").values()) == 0)


def settled(held: Held) -> list[bytes]:
    """All that came, which is finished."""
    for message in list(held.connection.in_flight):
        held.connection.finish(message)
    return held.bodies


def publish(kit: Kit, first: int, last: int) -> None:
    """In turns to each of two queues."""
    queues = {"readQueueNums": "2", "writeQueueNums": "2", "perm": "6", "topicSysFlag": "0", "order": "false"}
    same = {"a": "g", "b": kit.topic, "c": "TBW102", "d": "4", "f": "0", "g": "0", "h": "0", "m": "false"}
    with kit.open()._sessions.use(kit.server.broker.address) as session:
        made = {"topic": kit.topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", **queues}
        session.ask(Request.UPDATE_AND_CREATE_TOPIC, made)
        for number in range(first, last):
            for queue in (0, 1):
                fields = {**same, "e": str(queue), "i": f"UNIQ_KEY\x01{queue}{number}\x02"}
                session.ask(Request.SEND_MESSAGE_V2, fields, b"%d-%d" % (queue, number))
