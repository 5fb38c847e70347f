"""Handlers without messages are not called by any timer, and those with some are, at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from framework.engine.consumer import Consumer
from framework.errors import Backoff, HandlerTimeout
from framework.message import Message
from framework.transports.contract import Limits

Run = Callable[..., Any]


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of the handler for each time that a timer called it."""
    called: list[str] = []
    tick, keep = Consumer.tick, Consumer.keep_leases
    monkeypatch.setattr(Consumer, "tick", lambda self, now: called.append(self.spec.name) or tick(self, now))
    monkeypatch.setattr(Consumer, "keep_leases", lambda self, now: called.append(self.spec.name) or keep(self, now))
    return called


def resting(worker: Any) -> bool:
    return bool(worker.supervisor._consumers) and not any(one.awake for one in worker.supervisor._consumers)


def test_handlers_without_messages_are_left_alone_and_the_others_are_not(
    broker: Any, run: Run, spec: Any, ticks: list[str]
) -> None:
    gate = gevent.event.Event()
    worker = run(spec(len, topic="idle"), spec(lambda message: gate.wait(), topic="orders"))
    worker.until(lambda: resting(worker))
    ticks.clear()
    gevent.sleep(0.5)
    assert ticks == []
    broker.publish("orders", b"x")
    worker.until(lambda: len(ticks) > 10)
    assert set(ticks) == {"orders/billing"}
    gate.set()
    worker.until(lambda: resting(worker))


def test_leases_are_kept_and_limits_enforced_of_what_comes_after_a_rest(broker: Any, run: Run) -> None:
    broker.nodes["a:1"].limits = Limits(lease=0.6, max_lease=60.0, max_grant=2500)
    ended: list[float] = []

    def handle(message: Message) -> None:
        began = time.monotonic()
        try:
            gevent.sleep(60)
        except HandlerTimeout:
            ended.append(time.monotonic() - began)
            raise

    worker = run(handle, timeout=1.2, max_attempts=0)
    worker.until(lambda: resting(worker))
    gevent.sleep(0.3)
    broker.publish("orders", b"x")
    worker.until(lambda: ended)
    [connection] = broker.connections()
    assert connection.touches >= 2
    assert 1.1 < ended[0] < 5


def test_a_handler_whose_connection_ended_under_it_still_has_its_limit(broker: Any, run: Run) -> None:
    told: list[str] = []

    def handle(message: Message) -> None:
        try:
            gevent.sleep(60)
        except HandlerTimeout as error:
            told.append(str(error))
            raise

    worker = run(handle, timeout=0.8, max_attempts=0)
    broker.publish("orders", b"x")
    worker.until(lambda: broker.connections() and broker.connections()[0].in_flight)
    broker.nodes["a:1"].kill()
    worker.until(lambda: told, seconds=5)


def test_a_pause_ends_although_nothing_is_in_flight(broker: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.engine.backoff.PAUSE_BASE", 0.2)
    calls: list[bytes] = []

    def handle(message: Message) -> None:
        calls.append(message.body)
        if len(calls) == 1:
            raise Backoff("no database")

    worker = run(handle, max_attempts=0)
    worker.until(lambda: resting(worker))
    broker.publish("orders", b"x")
    worker.until(lambda: len(calls) == 1)
    broker.publish("orders", b"y")
    worker.until(lambda: len(calls) >= 3, seconds=10)
    worker.until(lambda: resting(worker))


def test_what_is_changed_from_outside_wakes_it(broker: Any, run: Run) -> None:
    worker = run(lambda message: None)
    for name in ("b:1", "c:1"):
        broker.node(name)
    worker.until(lambda: len(broker.connections()) == 3 and resting(worker))
    worker.supervisor.set_max_in_flight("orders/billing", 1)  # three take turns
    for node in broker.nodes.values():
        node.publish("orders", [b"x"] * 5)
    worker.until(lambda: len(broker.finished) == 15)
    worker.supervisor.set_max_in_flight("orders/billing", 100)
    worker.until(lambda: resting(worker))
