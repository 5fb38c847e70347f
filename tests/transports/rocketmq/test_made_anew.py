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
FIRST = 200


@pytest.mark.parametrize("then", [40, 2000], ids=["fewer than before", "more than before"])
def test_what_is_published_to_it_then_is_handled(kit: Kit, then: int) -> None:
    """A PULL that waits at an offset behind all that is there now is answered only when its time is over. Where there is more it
    is answered with what lies there, and 200 of the 2,000, those before it, never came."""
    transport = kit.open("&mode=pull")
    held = kit.hold(transport, grant=FIRST)
    bodies: set[bytes] = set()

    def handled(start: bytes) -> int:
        nonlocal held
        if held.receiver.closings:
            held = kit.hold(transport, grant=FIRST)
        for message in list(held.connection.in_flight):
            held.connection.finish(message)
            bodies.add(message.body)
        return sum(body.startswith(start) for body in bodies)

    kit.spread(*(b"first %d" % number for number in range(FIRST)))
    until(lambda: handled(b"first") == FIRST)
    gevent.sleep(1.0)
    with kit.open()._sessions.use(kit.server.broker.address) as session:
        session.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": kit.topic_there})
        queues: Any = {"readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicSysFlag": "0", "order": "false"}
        made = {"topic": kit.topic_there, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", **queues}
        session.ask(Request.UPDATE_AND_CREATE_TOPIC, made)
    kit.spread(*(b"then %d" % number for number in range(then)))
    until(lambda: handled(b"then") == then, PARKED + 3 * CHECKED)
