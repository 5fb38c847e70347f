"""A broker that answers at once, and brings nothing, is not asked again at once: else both would do nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import gevent
import pytest

from framework.transports import open_transports
from framework.transports.rocketmq.delivery import Delivery
from framework.transports.rocketmq.refusals import EMPTY
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.handles import NORMAL, Handle
from tests.transports.rocketmq.canned import NAME, QUEUES, Canned
from tests.transports.rocketmq.kit import Sink, until

Said = tuple[int, Mapping[str, str], bytes]


def fields(following: int, least: int = 0) -> dict[str, str]:
    return {"nextBeginOffset": str(following), "minOffset": str(least), "maxOffset": "1000000"}


class Empty(Canned):
    """``says``: what it answers to a POP or a PULL of its topic, while ``empty``."""

    def __init__(self, says: Callable[[Empty, Mapping[str, str]], Said]) -> None:
        self.says, self.empty = says, True
        super().__init__(10)

    def _popped(self, asked: Mapping[str, str]) -> Said | None:
        return self.says(self, asked) if self.empty else super()._popped(asked)

    def _pulled(self, asked: Mapping[str, str]) -> Said | None:
        is_empty = self.empty and not asked["topic"].startswith("%RETRY%")
        return self.says(self, asked) if is_empty else super()._pulled(asked)


POPS: dict[str, Callable[[Empty, Mapping[str, str]], Said]] = {
    "no message": lambda server, asked: (Answer.POLLING_TIMEOUT, {}, b""),
    "success, and none": lambda server, asked: (
        Answer.SUCCESS, {"popTime": "1700000000000", "invisibleTime": "60000", "reviveQid": "0", "restNum": "9"}, b""
    ),
}  # fmt: skip
PULLS: dict[str, Callable[[Empty, Mapping[str, str]], Said]] = {
    "not found": lambda server, asked: (Answer.PULL_NOT_FOUND, fields(int(asked["queueOffset"])), b""),
    "again": lambda server, asked: (Answer.PULL_RETRY_IMMEDIATELY, fields(int(asked["queueOffset"])), b""),
    "moved to where it is": lambda server, asked: (Answer.PULL_OFFSET_MOVED, fields(int(asked["queueOffset"]), 1), b""),
    "moved to and fro": lambda server, asked: (Answer.PULL_OFFSET_MOVED, fields(0 if int(asked["queueOffset"]) else 9, 1), b""),
}  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "says"),
    [*(pytest.param("pop", says, id=f"pop {name}") for name, says in POPS.items()),
     *(pytest.param("pull", says, id=f"pull {name}") for name, says in PULLS.items())],
)  # fmt: skip
def test_it_is_asked_a_few_times_a_second_and_read_when_it_brings_something(mode: str, says: Any) -> None:
    server = Empty(says)
    (transport,) = open_transports([f"rocketmq://{server.address}?mode={mode}&poll=1s"])
    sink = Sink()
    connection = transport.connect(NAME, server.topic, "billing", sink)
    code = Request.POP_MESSAGE if mode == "pop" else Request.PULL_MESSAGE
    began = time.monotonic()
    connection.grant(5)
    until(lambda: server.asked[code] >= 4)
    gevent.sleep(0.5)
    turns = (time.monotonic() - began) / EMPTY + 2
    assert server.asked[code] <= 2 * (QUEUES + 1) * turns  # two, where one goes from 0 to 9 and another back
    server.empty = False
    until(lambda: sink.bodies)
    connection.close()
    until(lambda: sink.closings)
    transport.close()
    server.close()


def test_a_change_is_made_again_ever_later_where_the_clock_of_the_broker_stands() -> None:
    one = Delivery(Handle(5, 1000, 60_000, 0, NORMAL, NAME, 0, 5), 5, 0.0, 0.0, 0.0, b"x")
    waits = []
    for _ in range(20):
        assert not one.changed(1000, 60_000, 0, 0.0, heard=7.0)
        waits.append(one.ready - 7.0)
    assert waits[0] < 0.005
    assert waits == sorted(waits)
    assert 1.0 < waits[-1] < 3.0
    assert one.changed(1001, 60_000, 0, 0.0, heard=7.0)
    assert one.ready - 7.0 < 0.005
