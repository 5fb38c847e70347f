"""Leases that are changed as soon as a message has come, on a real RocketMQ that keeps its checkpoints in files: a change in the
millisecond of the delivery would lose the message there."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from framework.engine.ledger import Ledger
from framework.message import Message
from framework.testing.rocketmq import RocketMQ, real_rocketmq
from framework.testing.servers import ServerMissing
from framework.transports import open_transports
from framework.transports.rocketmq import delivery
from framework.transports.rocketmq.delivery import Delivery
from tests.conftest import missing
from tests.transports.rocketmq.kit import until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]
LEASE = 4.0
SILENCE = 20.0
"""Seconds without a message after which none comes: a lease, and the five seconds that a broker is late."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    try:
        made = real_rocketmq(tmp_path_factory.mktemp("files"))
    except ServerMissing as error:
        missing(str(error))
        raise
    made.start()
    yield made
    made.kill()


class Hasty:
    """``contract.Receiver``: requeues what comes for the first time before it does anything else."""

    capacity = 10

    def __init__(self) -> None:
        self.tally = Ledger()
        self.done: Counter[bytes] = Counter()
        self.heard = time.monotonic()
        self.closings = 0

    def deliver(self, connection: Any, batch: list[Message]) -> None:
        self.heard = time.monotonic()
        for message in batch:
            if message.attempts == 1:
                connection.requeue(message, random.uniform(0.5, 3.0))
            else:
                self.done[message.body] += 1
                connection.finish(message)

    def settled(self, connection: Any) -> None: ...

    def lost(self, *_: Any, **__: Any) -> None: ...

    def drained(self, connection: Any) -> None: ...

    def closed(self, connection: Any, error: Exception | None) -> None:
        self.closings += 1


def lost(server: RocketMQ, topic: str, count: int) -> tuple[int, int]:
    """How many of ``count`` messages do not come again, and how many come more than once more."""
    (transport,) = open_transports([f"rocketmq://{server.address}?poll=500ms&lease={LEASE:g}s"])
    transport.ensure(topic, ["billing"])
    receiver: Any = Hasty()
    connection = transport.connect(server.name, topic, "billing", receiver)
    connection.grant(500)
    producer = transport.producer()
    sent = [b"%d" % number for number in range(count)]
    for at in range(0, count, 20):  # a few at a time: the broker answers a POP that waits as they come
        producer.publish(topic, sent[at : at + 20])
        gevent.sleep(0.01)
    until(lambda: len(receiver.done) == count or time.monotonic() - receiver.heard > SILENCE, 300.0)
    connection.close()
    until(lambda: receiver.closings)
    producer.close()
    transport.close()
    return count - len(receiver.done), sum(receiver.done.values()) - len(receiver.done)


def counting(monkeypatch: pytest.MonkeyPatch, verdict: Callable[[bool], bool]) -> list[bool]:
    """Whether each change fell into the millisecond of the one before; ``verdict``: what is made of that."""
    found: list[bool] = []
    changed = Delivery.changed

    def noted(self: Delivery, *said: Any, **more: Any) -> bool:
        found.append(apart := changed(self, *said, **more))
        return verdict(apart)

    monkeypatch.setattr(Delivery, "changed", noted)
    return found


def needed(found: list[bool]) -> None:
    if False not in found:
        pytest.skip("this machine is too busy: no change came to the broker in the millisecond of its delivery")


def test_of_messages_whose_leases_are_changed_at_once_none_is_lost(server: RocketMQ) -> None:
    gone, twice = lost(server, "quick", 5000)
    print(f"5,000 quick changes: {gone} lost, {twice} came twice")
    assert gone == 0


def test_of_changes_that_do_not_wait_none_is_lost_because_they_are_made_again(
    server: RocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "APART", 0.0)
    found = counting(monkeypatch, lambda apart: apart)
    gone, twice = lost(server, "repaired", 5000)
    print(f"5,000 quick changes, {found.count(False)} of them made again: {gone} lost, {twice} came twice")
    assert gone == 0
    needed(found)


def test_without_either_messages_are_lost(server: RocketMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the other two show nothing."""
    monkeypatch.setattr(delivery, "APART", 0.0)
    found = counting(monkeypatch, lambda apart: True)
    gone, _ = lost(server, "control", 1000)
    print(f"1,000 quick changes, {found.count(False)} of them in the millisecond of the delivery: {gone} lost")
    needed(found)
    assert gone > 0
