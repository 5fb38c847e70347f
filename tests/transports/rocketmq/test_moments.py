"""Workers by PULL that are told to stop, or killed, at the moment of one request to a real RocketMQ: every message is counted."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.testing.workers import Worker
from framework.transports.rocketmq.wire.codes import Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.gate import Gates
from tests.transports.rocketmq.kit import Kit, until

pytestmark = [pytest.mark.real, pytest.mark.slow]
SOON = 15.0
"""Seconds in which a worker ends that was told to: its own 10 s for what runs, and a busy machine."""
KILLS = 12


class Shop:
    """Workers of one topic. Each message that was handled is a line in a file."""

    def __init__(self, kit: Kit, folder: Path) -> None:
        self.kit, self._folder, self._file = kit, folder, folder / "handled"
        self._file.touch()
        self.gates = Gates(kit.server.address, kit.server.broker.address)
        self._workers: list[Worker] = []
        (folder / "shop.py").write_text(f"""
import os, gevent
from framework import handler
@handler({kit.topic!r}, "billing", concurrency=10)
def bill(body: bytes) -> None:
    gevent.sleep(0.02)
    fd = os.open({str(self._file)!r}, os.O_WRONLY | os.O_APPEND)
    os.write(fd, body + b"\\n")
    os.close(fd)
""")
        kit.open("&mode=pull").ensure(kit.topic, ["billing"])

    def start(self, address: str = "", *, ready: bool = True) -> Worker:
        url = f"rocketmq://{address or self.gates.name_server.address}?mode=pull"
        more = ("--poll-interval=1s", "--connect-deadline=60s", "--drain=10s")
        worker = Worker("run", "shop", "--broker", url, *more, cwd=self._folder)
        self._workers.append(worker)
        if ready:
            worker.wait_for("ready", deadline=60.0)
        return worker

    def publish(self, first: int, last: int) -> None:
        self.kit.spread(*(b"%d" % number for number in range(first, last)))

    def handled(self) -> Counter[int]:
        return Counter(map(int, self._file.read_bytes().split()))

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.process.wait()
        self.gates.stop()


@pytest.fixture
def shop(kit: Kit, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(kit, tmp_path)
    yield made
    made.close()


def told_to_stop(worker: Worker) -> float:
    """Seconds until it has ended, by 0."""
    began = time.monotonic()
    assert worker.stop() == 0, worker.err[-10:]
    return time.monotonic() - began


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


@pytest.mark.parametrize("when", ["before", "after"])
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
