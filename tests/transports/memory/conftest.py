"""A broker in memory with handlers of the whole engine on it; whatever a test does, the ledgers must add up at the end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from framework.engine.ledger import Ledger
from framework.engine.supervisor import Supervisor
from framework.handler import make_spec
from framework.message import Message
from framework.transports import open_transports
from framework.transports.contract import Transport
from framework.transports.memory import MemoryBroker, forget, named

_numbers = itertools.count(1)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """A broker of one node."""
    name = f"test-{next(_numbers)}"
    yield named(name)
    forget(name)


@pytest.fixture
def transport(broker: MemoryBroker) -> Transport:
    return open_transports([broker.url])[0]


@pytest.fixture
def publish(transport: Transport) -> Callable[..., None]:
    """``publish("orders", b"one", b"two", delay=5)``."""

    def publish(topic: str, *bodies: bytes, **options: Any) -> None:
        transport.producer().publish(topic, list(bodies), **options)

    return publish


class Running:
    """A supervisor in a greenlet of the test."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.greenlet = gevent.spawn(supervisor.run)

    def until(self, condition: Callable[[], Any], seconds: float = 20.0) -> None:
        until(condition, seconds)

    @property
    def ledger(self) -> Ledger:
        return next(iter(self.supervisor.ledgers.values()))

    def stop(self) -> dict[str, int]:
        """Stop, check the books, and return the first handler's."""
        self.supervisor.stop()
        self.greenlet.get(timeout=30)
        for ledger in self.supervisor.ledgers.values():
            assert ledger.balance(0) == 0, ledger
        return self.ledger.as_dict()


def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        gevent.sleep(0.001)


@pytest.fixture
def run(transport: Transport, publish: Callable[..., None]) -> Iterator[Callable[..., Running]]:
    """``run(function, concurrency=3)``: a handler of orders/billing, running; ``on=("refunds", "audit")`` for another."""
    started: list[Running] = []

    def start(function: Callable[[Message], object], *, on: tuple[str, str] = ("orders", "billing"), **options: Any) -> Running:
        one = Running(Supervisor([make_spec(function, *on, options)], [transport], publish=publish))
        started.append(one)
        one.until(lambda: one.supervisor.ready)
        return one

    yield start
    for one in started:
        if not one.greenlet.dead:
            one.stop()
