"""When the subscription to a ``.later`` topic rests from another app's copies where nothing is delayed, and how it ends."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.engine import later_dialler
from framework.engine.later_dialler import LaterDialler, _Resting
from framework.handler import make_spec
from framework.message import Message
from framework.middleware.envelope import Header, sealed

SPEC = make_spec(lambda message: None, "orders", "eu.billing")


class Node:
    """As much of a connection as is asked for; it never says that it is drained."""

    node, topic, channel = "a:4150", "orders.eu.billing.later", "eu.billing"

    def __init__(self) -> None:
        self.in_flight: dict[Message, float] = {}
        self.drained_at = self.closed_at = 0.0
        self.limits = SimpleNamespace(goodbye=0.3)

    def drain(self) -> None:
        self.drained_at = time.monotonic()

    def close(self) -> None:
        self.closed_at = time.monotonic()


class Consumer:
    """As much of a consumer."""

    spec, tally, capacity, shutdown = SPEC, None, 1, SimpleNamespace(begun=False)
    settled = lost = drained = closed = staticmethod(lambda *_: None)

    def __init__(self) -> None:
        self.accounts: dict[Any, Any] = {}

    def deliver(self, connection: Any, batch: list[Message]) -> None: ...


def anothers(connection: Any, number: int) -> Message:
    body = sealed(Header("orders.eu", "billing", f"{number:016x}", "a:4150", 1_700_000_000_000_000_000, 1, 0.0), b"x")
    return Message(b"%016x" % number, 1_700_000_000_000_000_000, 1, body, connection)


@pytest.mark.parametrize("fan_out", [True, False])
def test_it_rests_when_a_copy_comes_again_and_where_there_is_one_queue_for_all_at_once(fan_out: bool) -> None:
    rests: list[Any] = []
    dialler: Any = SimpleNamespace(
        keeps_delays=lambda _: False,
        rest=rests.append,
        transport=SimpleNamespace(capabilities=SimpleNamespace(fan_out=fan_out)),
    )
    connection: Any = Node()
    pacing = _Resting(Consumer(), dialler)  # type: ignore[arg-type]
    pacing.deliver(connection, [anothers(connection, 1), anothers(connection, 2)])
    assert len(rests) == (not fan_out)
    pacing.deliver(connection, [anothers(connection, 1)])
    assert len(rests) == 1 + (not fan_out)


def leave(connection: Node, *, drained: bool) -> None:
    consumer = Consumer()
    consumer.accounts[connection] = SimpleNamespace(drained=drained)
    dialler: Any = SimpleNamespace(consumer=consumer)
    leaving = gevent.spawn(LaterDialler._leave, dialler, connection)
    leaving.get(timeout=5)


def test_a_connection_whose_broker_never_says_that_it_is_drained_is_closed_all_the_same() -> None:
    connection = Node()
    leave(connection, drained=False)
    assert connection.closed_at - connection.drained_at >= 0.3


def test_one_that_is_drained_is_closed_once_what_came_on_it_is_settled() -> None:
    connection: Any = Node()
    message = anothers(connection, 1)
    connection.in_flight[message] = time.monotonic()
    gevent.spawn_later(0.3, connection.in_flight.clear)
    leave(connection, drained=True)
    assert connection.closed_at - connection.drained_at >= 0.29


@pytest.mark.parametrize("subscribed", [True, False])
def test_while_nobody_is_subscribed_to_where_something_waits_it_is_looked_for_at_once_and_else_now_and_then(
    subscribed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later_dialler, "LOOK", 0.1)
    monkeypatch.setattr(later_dialler, "LOOK_WHEN_SUBSCRIBED", 10.0)
    now, looks, consumer = [1000.0], list[float](), Consumer()
    monkeypatch.setattr(later_dialler, "time", SimpleNamespace(monotonic=lambda: now[0]))
    there, elsewhere = Node(), Node()
    elsewhere.topic = "orders"
    consumer.accounts = dict.fromkeys([there, elsewhere] if subscribed else [elsewhere])
    dialler: Any = SimpleNamespace(
        _started=True, _stored=False, _looked_at=0.0, topic=Node.topic, consumer=consumer, look=lambda: looks.append(now[0])
    )
    for _ in range(201):
        LaterDialler.stored(dialler)
        now[0] += 0.125
    assert len(looks) == (3 if subscribed else 201)


def test_what_is_stored_before_the_start_is_looked_for_at_the_start() -> None:
    dialler: Any = SimpleNamespace(_started=False, _stored=False)
    LaterDialler.stored(dialler)
    assert dialler._stored
