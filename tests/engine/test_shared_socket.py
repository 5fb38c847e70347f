"""What the connections of a worker share: it is begun before they are, and kept once for all of them while the hub is blocked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import gevent

from framework.message import Message
from tests.engine.conftest import FakeBroker, FakeConnection

Run = Callable[..., Any]


class Socket:
    """What several connections share."""

    def __init__(self) -> None:
        self.rescues: list[set[Message]] = []
        self.heard = 0

    def rescue(self, now: float, expired: Collection[Message]) -> None:
        self.rescues.append(set(expired))

    def rescued(self) -> None:
        self.heard += 1


def test_a_transport_is_started_on_the_workers_hub_once_before_anything_is_dialled(
    broker: FakeBroker, run: Run, spec: Any
) -> None:
    worker = run(spec(print), spec(print, topic="invoices"))
    worker.until(lambda: worker.supervisor.ready)
    assert broker.started == [(gevent.get_hub(), 0)]


def test_a_socket_is_rescued_once_for_all_connections_that_share_it_and_told_of_every_call_that_is_over(
    broker: FakeBroker, run: Run, spec: Any, monkeypatch: Any
) -> None:
    socket, running = Socket(), []
    monkeypatch.setattr(FakeConnection, "rescuable", socket)
    before = 1_000_000  # rescues: a process that is not run for a moment needs them as well

    def hang(message: Message) -> None:
        running.append(message)
        while len(socket.rescues) < before + 2:
            gevent.sleep(0.01)

    def block(message: Message) -> None:
        nonlocal before
        before = len(socket.rescues)
        time.sleep(1.2)  # nothing but the guardian's thread runs: some three times it keeps what there is

    hanging = [spec(hang, topic=f"hang{number}", timeout=0.4) for number in range(3)]
    worker = run(*hanging, spec(block, topic="block"))
    worker.until(lambda: worker.supervisor.ready)
    for one in hanging:
        broker.publish(one.topic, b"x")
    worker.until(lambda: len(running) == 3)
    broker.publish("block", b"x")
    worker.until(lambda: socket.heard)
    assert 2 <= len(socket.rescues) - before <= 5, "and not three for each of four connections"
    assert socket.rescues[-1] == set(running)
    assert socket.heard <= 2


def test_a_connection_that_cannot_be_rescued_is_left_alone(broker: FakeBroker, run: Run) -> None:
    done: list[Message] = []

    def block(message: Message) -> None:
        time.sleep(0.8)
        done.append(message)

    worker = run(block)
    broker.publish("orders", b"x")
    worker.until(lambda: done)
    assert worker.stop()["finished"] == 1
