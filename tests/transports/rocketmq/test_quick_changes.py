"""Leases that are changed as soon as a message has come, on a real RocketMQ that keeps its checkpoints in files: a change in the
millisecond of the delivery would lose the message there.

On a machine that does something else as well, no change comes to the broker that soon. So there is one whose clock steps: all
that happens between two steps happens in one millisecond, as that broker sees it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import pytest

from framework.engine.ledger import Ledger
from framework.message import Message
from framework.testing.rocketmq import RocketMQ, real_rocketmq
from framework.testing.servers import ServerMissing
from framework.transports import open_transports
from framework.transports.rocketmq.delivery import Delivery
from tests import clocks
from tests.conftest import missing
from tests.transports.rocketmq.kit import until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]
LEASE = 4.0
STEP = 0.25
"""Seconds: how the clock steps that does."""
SILENCE = 20.0
"""Seconds without a message after which none comes: a lease, and the five seconds that a broker is late."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RocketMQ]:
    with _running(tmp_path) as made:
        yield made


@pytest.fixture
def stepping_server(tmp_path: Path) -> Iterator[RocketMQ]:
    with _running(tmp_path, STEP) as made:
        yield made


@contextmanager
def _running(folder: Path, step: float = 0.0) -> Iterator[RocketMQ]:
    try:
        made = real_rocketmq(folder)
        if step:
            clocks.stepping(made.broker, folder, step)
    except ServerMissing as error:
        missing(str(error))
        raise
    made.start()
    try:
        yield made
    finally:
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
    for at in range(0, count, 5):  # a few at a time: the broker answers a POP that waits as they come
        producer.publish(topic, sent[at : at + 5])
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


def test_of_messages_whose_leases_are_changed_at_once_none_is_lost(server: RocketMQ) -> None:
    gone, twice = lost(server, "quick", 5000)
    print(f"5,000 quick changes: {gone} lost, {twice} came twice")
    assert gone == 0


def test_of_changes_in_the_millisecond_of_the_delivery_none_is_lost_because_they_are_made_again(
    stepping_server: RocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = counting(monkeypatch, lambda apart: apart)
    gone, twice = lost(stepping_server, "repaired", 2000)
    print(f"2,000 quick changes, made again {found.count(False)} times: {gone} lost, {twice} came twice")
    assert gone == 0
    assert found.count(False) > 1000


def test_if_they_were_not_made_again_messages_would_be_lost(stepping_server: RocketMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the one before shows nothing."""
    found = counting(monkeypatch, lambda apart: True)
    gone, _ = lost(stepping_server, "control", 1000)
    print(f"1,000 quick changes, {found.count(False)} of them in the millisecond of the delivery: {gone} lost")
    assert found.count(False) > 100
    assert gone > 0
