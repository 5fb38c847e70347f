"""What a broker may still send counts until it cannot any more, whatever was granted meanwhile; and a goodbye takes its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gevent
from gevent.event import Event

from framework.message import Message
from tests.engine.conftest import FakeBroker

Run = Callable[..., Any]


def test_what_one_connection_may_still_get_is_granted_to_no_other(broker: FakeBroker, run: Run) -> None:
    broker.node("b:1")
    gate, held = Event(), []

    def handle(message: Message) -> None:
        held.append(message)
        gate.wait()

    worker = run(handle, concurrency=10, max_in_flight=10)
    worker.until(lambda: len(broker.connections()) == 2)
    parked, other = (broker.nodes[name].connections[0] for name in ("a:1", "b:1"))
    parked.parked = 7
    worker.until(lambda: parked.granted)
    gevent.sleep(0.15)  # a few ticks, by which it is known
    broker.nodes["b:1"].publish("orders", [b"x"] * 20)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        assert other.granted <= 3
        gevent.sleep(0.005)
    assert len(held) == 3
    parked.parked = 0
    worker.until(lambda: len(held) >= 9)
    gate.set()


def test_where_connections_take_turns_none_is_given_to_another_while_a_request_is_open(broker: FakeBroker, run: Run) -> None:
    for name in ("b:1", "c:1"):
        broker.node(name)
    seen: list[Message] = []
    worker = run(seen.append, concurrency=1, max_in_flight=1)
    worker.until(lambda: len(broker.connections()) == 3 and any(one.granted for one in broker.connections()))
    parked = next(one for one in broker.connections() if one.granted)
    parked.parked = 1
    gevent.sleep(0.3)
    others = [one for one in broker.connections() if one is not parked]
    assert [one.granted for one in others] == [0, 0]
    parked.parked = 0
    worker.until(lambda: any(one.granted for one in others))


def test_a_worker_waits_for_a_goodbye_as_long_as_its_limits_say(broker: FakeBroker, run: Run) -> None:
    node = broker.nodes["a:1"]
    node.mute = True
    node.limits = replace(node.limits, goodbye=3.0)
    worker = run(lambda message: None)
    worker.until(lambda: worker.supervisor.ready)
    (connection,) = broker.connections()
    gevent.spawn_later(2.5, connection._receiver.drained, connection)
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began > 2.4
