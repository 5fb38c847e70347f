"""A topic of a real RocketMQ that is deleted, and made again with the same name, while a reader waits for its next message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from framework.testing.rocketmq import OLDER, PROMPT
from framework.transports.rocketmq.requests import CHECKED, PARKED
from framework.transports.rocketmq.set_back import EVERY
from framework.transports.rocketmq.wire.codes import Request
from tests.transports.rocketmq.kit import Kit, started, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]
FIRST = 200


class Worker:
    """Handles what comes, and connects anew where its connection has ended."""

    def __init__(self, kit: Kit, options: str) -> None:
        self._kit, self._options = kit, options
        self._bodies: set[bytes] = set()
        self._begin()

    def _begin(self) -> None:
        self._transport = self._kit.open(self._options)
        self._held = self._kit.hold(self._transport, grant=FIRST)

    def handled(self, start: str) -> int:
        """How many messages that begin so, by now."""
        if self._held.receiver.closings:
            self._held = self._kit.hold(self._transport, grant=FIRST)
        for message in list(self._held.connection.in_flight):
            self._held.connection.finish(message)
            self._bodies.add(message.body)
        return sum(body.startswith(start.encode()) for body in self._bodies)

    def stop(self) -> None:
        self._held.connection.close()
        until(lambda: self._held.receiver.closings)

    def start(self) -> None:
        """As another one, which remembers nothing."""
        self._begin()


MORE_OR_FEWER = pytest.mark.parametrize("then", [40, 2000], ids=["fewer than before", "more than before"])


@MORE_OR_FEWER
def test_what_is_published_to_it_then_is_handled(kit: Kit, then: int) -> None:
    """A PULL that waits at an offset behind all that is there now is answered only when its time is over. Where there is more it
    is answered with what lies there, and 200 of the 2,000, those before it, never came."""
    handle_anew(kit, then)


@MORE_OR_FEWER
def test_so_it_is_with_4_9_7(older: Kit, then: int) -> None:
    handle_anew(older, then)


def handle_anew(kit: Kit, then: int) -> None:
    """Twice, one after the other."""
    worker = Worker(kit, "&mode=pull")
    for turn in "first", "second":
        handle_turn(worker, kit, turn, then)


def handle_turn(worker: Worker, kit: Kit, turn: str, then: int) -> None:
    kit.spread(*(b"%s, before %d" % (turn.encode(), number) for number in range(FIRST)))
    until(lambda: worker.handled(f"{turn}, before") == FIRST)
    gevent.sleep(1.0)
    make_anew(kit)
    kit.spread(*(b"%s, then %d" % (turn.encode(), number) for number in range(then)))
    until(lambda: worker.handled(f"{turn}, then") == then, PARKED + 3 * CHECKED)


@pytest.fixture
def older(tmp_path: Path) -> Iterator[Kit]:
    for one in started(tmp_path, version=OLDER):
        made = Kit(one)
        yield made
        made.close()


@pytest.fixture
def in_kv_mode(tmp_path: Path) -> Iterator[Kit]:
    for one in started(tmp_path, PROMPT):
        made = Kit(one)
        yield made
        made.close()


@pytest.mark.parametrize("at_work", [True, False], ids=["while a worker reads", "while none does"])
def test_by_pop_in_kv_mode_all_are_handled(in_kv_mode: Kit, at_work: bool) -> None:
    """The broker goes on in each new queue where it was in the old one: of 100 messages none came, and of 230 came 38."""
    kit = in_kv_mode
    worker = Worker(kit, "&mode=pop&lease=20s")
    for then in 100, 230:
        kit.spread(*(b"first %d, %d" % (then, number) for number in range(FIRST)))
        until(lambda: worker.handled(f"first {then},") == FIRST)  # noqa: B023 - it is called at once
        gevent.sleep(1.0)
        if not at_work:
            worker.stop()
        make_anew(kit)
        kit.spread(*(b"then %d, %d" % (then, number) for number in range(then)))
        if not at_work:
            worker.start()
        until(lambda: worker.handled(f"then {then},") == then, 2 * EVERY + 20.0)  # noqa: B023 - as above


def make_anew(kit: Kit) -> None:
    """Its topic."""
    with kit.open()._sessions.use(kit.server.broker.address) as session:
        session.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": kit.topic_there})
        queues: Any = {"readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicSysFlag": "0", "order": "false"}
        made = {"topic": kit.topic_there, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", **queues}
        session.ask(Request.UPDATE_AND_CREATE_TOPIC, made)
