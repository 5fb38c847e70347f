"""Workers by PULL that are told to stop, or killed, at the moment of one request to a real RocketMQ: every message is counted."""

from __future__ import annotations

import signal

import pytest

from framework.testing.workers import Worker
from framework.transports.rocketmq.wire.codes import Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.kit import until
from tests.transports.rocketmq.shop import SOON, Shop, told_to_stop

pytestmark = [pytest.mark.real, pytest.mark.slow]
KILLS = 12


@pytest.mark.parametrize(
    "request_of",
    [
        Request.GET_ROUTEINFO_BY_TOPIC, Request.GET_BROKER_CONFIG, Request.HEART_BEAT, Request.GET_CONSUMER_LIST_BY_GROUP,
        Request.LOCK_BATCH_MQ, Request.QUERY_CONSUMER_OFFSET, Request.PULL_MESSAGE,
    ],
    ids=lambda code: code.name,
)  # fmt: skip
def test_a_worker_that_is_told_to_stop_while_it_dials_ends_and_leaves_all_to_the_next(shop: Shop, request_of: Request) -> None:
    shop.publish(0, 40)
    shop.gates.hold(request_of)
    worker = shop.start(ready=False)
    worker.wait_until(lambda: shop.gates.held[request_of] > 0, deadline=60.0)
    assert told_to_stop(worker) < SOON
    assert not shop.handled()
    worker = shop.start(shop.kit.server.address)
    until(lambda: len(shop.handled()) == 40, 90.0)  # what it locked stays so for up to a minute
    assert told_to_stop(worker) < SOON
    assert set(shop.handled().values()) == {1}


@pytest.mark.parametrize(
    "request_of",
    [Request.GET_ROUTEINFO_BY_TOPIC, Request.GET_CONSUMER_LIST_BY_GROUP, Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ],
    ids=lambda code: code.name,
)
def test_a_worker_that_is_told_to_stop_in_the_middle_of_a_rebalance_hands_all_to_the_other(
    shop: Shop, request_of: Request
) -> None:
    """Or of a look at the routes. Another one joins, so that it must let go of queues; what it asks for that is not answered."""
    first = shop.start()
    shop.publish(0, 200)
    until(lambda: len(shop.handled()) > 20)
    shop.gates.hold(request_of)
    second = shop.start(shop.kit.server.address, ready=False)
    until(lambda: shop.gates.held[request_of] > 0, 60.0)
    shop.publish(200, 300)
    assert told_to_stop(first) < SOON
    until(lambda: len(shop.handled()) == 300, 90.0)
    assert told_to_stop(second) < SOON
    twice = sum(shop.handled().values()) - 300
    print(f"{request_of.name}: 300 handled, {twice} twice")
    assert twice == 0


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.long_run)])
def test_of_workers_that_are_killed_in_mid_commit_nothing_is_lost(shop: Shop, when: str) -> None:
    """``before`` their broker has it, or ``after``, and before they know."""
    sent = 0
    for kill in range(KILLS):
        worker = shop.start()
        setattr(shop.gates.broker, when, Strike(shop, worker, kill % 4 + 1))
        shop.publish(sent, sent + 20)
        sent += 20
        until(lambda worker=worker: worker.process.poll() is not None, 60.0)  # type: ignore[misc]
        setattr(shop.gates.broker, when, lambda _: None)
    worker = shop.start()
    until(lambda: len(shop.handled()) == sent, 90.0)
    assert told_to_stop(worker) < SOON
    twice = sum(shop.handled().values()) - sent
    print(f"{when}: {KILLS} kills, {sent} sent, 0 lost, {twice} twice")
    assert twice <= 20 * KILLS
    assert twice or when == "after", "no kill came between a call and its commit"


class Strike:
    """Kills ``worker`` at one of its commits after it has handled something. True: it has."""

    def __init__(self, shop: Shop, worker: Worker, number: int) -> None:
        self._shop, self._worker, self._left = shop, worker, number
        self._before = shop.handled().total()

    def __call__(self, frame: Frame) -> bool:
        by_pull = frame.code == Request.PULL_MESSAGE and int(frame.fields["sysFlag"]) & 1
        if not (by_pull or frame.code == Request.UPDATE_CONSUMER_OFFSET) or self._shop.handled().total() == self._before:
            return self._left <= 0
        self._left -= 1
        if not self._left:
            self._worker.process.send_signal(signal.SIGKILL)
        return self._left <= 0
