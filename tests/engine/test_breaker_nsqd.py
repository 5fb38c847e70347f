"""A handler that pauses, as real nsqds see it: RDY 0, then one message, also when an nsqd restarts meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest

from framework.engine import backoff
from framework.engine.supervisor import Supervisor
from framework.errors import Backoff
from framework.handler import make_spec
from framework.message import Message
from framework.publisher import Publisher
from framework.testing.servers import Server
from framework.transports import open_transports

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "PAUSE_CAP", 1.0)
    monkeypatch.setattr(backoff, "RETRY_CAP", 0.1)


class Needed:
    """A handler and what it depends on."""

    def __init__(self) -> None:
        self.down = True
        self.calls = 0
        self.done: set[bytes] = set()

    def handler(self) -> Callable[[Message], None]:
        def handle(message: Message) -> None:
            self.calls += 1
            if self.down:
                raise Backoff("no database")
            self.done.add(message.body)

        return handle


def until(condition: Callable[[], Any], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        gevent.sleep(0.01)


@contextmanager
def working(needed: Needed, *nsqds: Server) -> Iterator[None]:
    """The handler at work on ``nsqds``; at the end its ledger adds up."""
    transports = open_transports([f"nsq://{nsqd.address}" for nsqd in nsqds])
    publisher = Publisher(transports)
    spec = make_spec(needed.handler(), "orders", "billing", {"max_attempts": 0})
    supervisor = Supervisor([spec], transports, publish=publisher.publish, poll_interval=0.5)
    greenlet = gevent.spawn(supervisor.run)
    try:
        yield
    finally:
        supervisor.stop()
        greenlet.get(timeout=40)
        publisher.close()
    assert supervisor.ledgers["orders/billing"].balance(0) == 0


def put(nsqd: Server, count: int) -> set[bytes]:
    bodies = {b"%d on %d" % (n, nsqd.tcp_port) for n in range(count)}
    nsqd.http("/mpub?topic=orders", b"\n".join(bodies))
    return bodies


def asked_for(nsqd: Server) -> int:
    """The sum of the RDYs on orders/billing."""
    return sum(client["ready_count"] for client in nsqd.channel_stats("orders", "billing").get("clients") or [])


def test_while_it_is_down_nsqd_is_asked_for_nothing_or_one_and_then_all_is_done(nsqd: Server) -> None:
    needed, bodies = Needed(), put(nsqd, 500)
    with working(needed, nsqd):
        until(lambda: needed.calls and asked_for(nsqd) == 0)
        seen: set[int] = set()
        until(lambda: seen.add(asked_for(nsqd)) or needed.calls >= 4)
        assert seen <= {0, 1}
        assert 0 in seen
        needed.down = False
        until(lambda: needed.done == bodies)


@pytest.mark.slow
def test_an_nsqd_that_restarts_during_pauses_leaves_nothing_stuck(start_nsqd: Callable[..., Server]) -> None:
    first, second = start_nsqd("--mem-queue-size=0"), start_nsqd("--mem-queue-size=0")
    needed, bodies = Needed(), put(first, 50) | put(second, 50)
    with working(needed, first, second):
        for nsqd in (first, second, first):
            calls = needed.calls
            until(lambda: needed.calls > calls + 1)  # noqa: B023 - called within the round
            nsqd.stop()
            nsqd.start()
        needed.down = False
        until(lambda: needed.done == bodies)
