"""A topic of a real RocketMQ that is deleted, and made again with the same name, while a reader by PULL waits for its next
message. By POP its broker may lose the first ones."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from framework.transports.rocketmq.requests import CHECKED, PARKED
from framework.transports.rocketmq.wire.codes import Request
from tests.transports.rocketmq.kit import Kit, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]
FIRST, THEN = 200, 40


def test_what_is_published_to_it_then_is_handled(kit: Kit) -> None:
    """A PULL that waits at an offset behind all that is there now is answered only when its time is over."""
    held = kit.hold(kit.open("&mode=pull"), grant=FIRST)

    def handled(start: bytes) -> int:
        for message in list(held.connection.in_flight):
            held.connection.finish(message)
        return sum(body.startswith(start) for body in held.bodies)

    kit.spread(*(b"first %d" % number for number in range(FIRST)))
    until(lambda: handled(b"first") == FIRST)
    gevent.sleep(1.0)
    with kit.open()._sessions.use(kit.server.broker.address) as session:
        session.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": kit.topic_there})
        queues: Any = {"readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicSysFlag": "0", "order": "false"}
        made = {"topic": kit.topic_there, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", **queues}
        session.ask(Request.UPDATE_AND_CREATE_TOPIC, made)
    kit.spread(*(b"then %d" % number for number in range(THEN)))
    until(lambda: handled(b"then") == THEN, PARKED + 3 * CHECKED)
