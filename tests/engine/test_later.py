"""Delays that are longer than the broker takes, end to end: nothing comes too early, and another worker can take over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gevent
import pytest

from framework.engine import later
from framework.engine.supervisor import Supervisor
from framework.errors import BrokerUnreachable, Retry
from framework.handler import make_spec
from framework.message import Batch, Message
from framework.publisher import Publisher
from framework.testing.servers import Server
from framework.transports import open_transports


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "POLL", 0.1)


class Delivery:
    """What the handler saw of one call."""

    def __init__(self, message: Message) -> None:
        self.at = time.monotonic()
        self.id, self.attempts, self.body = message.id, message.attempts, message.body
        self.topic, self.node, self.timestamp = message.topic, message.node, message.timestamp


def check(first: Delivery, second: Delivery, delay: float) -> None:
    """The same message again, not before its time."""
    assert second.at - first.at >= delay
    assert second.attempts == first.attempts + 1
    for name in ("id", "body", "topic", "node", "timestamp"):
        assert getattr(first, name) == getattr(second, name)


@pytest.fixture
def limited(broker: Any) -> Callable[..., None]:
    """``broker`` takes no delay above 0.3 seconds; the publish of its supervisor."""
    broker.capabilities = replace(broker.capabilities, max_defer=0.3)

    def publish(topic: str, body: bytes, *, delay: float = 0.0) -> None:
        assert delay <= 0.3
        gevent.spawn_later(delay, broker.publish, topic, body)

    return publish


def test_a_long_delay_is_kept_and_costs_no_attempts(broker: Any, limited: Any, run: Callable[..., Any]) -> None:
    seen: list[Delivery] = []

    def handle(message: Message) -> None:
        seen.append(Delivery(message))
        if len(seen) == 1:
            raise Retry("later", delay=2.0)

    running = run(handle, dead=limited, max_attempts=2)
    broker.publish("orders", b"one\ntwo")
    running.until(lambda: len(seen) == 2)
    check(*seen, delay=2.0)
    ledger = running.stop()
    assert ledger["finished"] == 1
    assert ledger["dead"] == 0
    assert ledger["requeued"] >= 4, "once by the handler, and then in hops"


def test_waiting_messages_share_the_handlers_concurrency(broker: Any, limited: Any, run: Callable[..., Any]) -> None:
    running_now, most, done = 0, 0, []

    def handle(message: Message) -> None:
        nonlocal running_now, most
        if message.attempts == 1:
            raise Retry("later", delay=0.5)
        running_now += 1
        most = max(most, running_now)
        gevent.sleep(0.01)
        running_now -= 1
        done.append(message.body)

    running = run(handle, dead=limited, concurrency=2)
    broker.publish("orders", *(b"%d" % n for n in range(30)))
    running.until(lambda: len(done) == 30)
    assert most == 2
    running.stop()


def test_a_batch_handler_gets_them_back_as_well(broker: Any, limited: Any, run: Callable[..., Any]) -> None:
    done: list[tuple[bytes, int]] = []

    def handle(batch: Batch) -> None:
        for message in batch:
            if message.attempts == 1:
                batch.fail(message, Retry("later", delay=0.7))
            else:
                done.append((message.body, message.attempts))

    running = run(handle, dead=limited, batch=5, linger=0.01)
    broker.publish("orders", *(b"%d" % n for n in range(20)))
    running.until(lambda: len(done) == 20)
    assert sorted(done) == sorted((b"%d" % n, 2) for n in range(20))
    running.stop()


def test_who_asks_for_no_long_delay_gets_no_second_topic(broker: Any, run: Callable[..., Any]) -> None:
    running = run(lambda message: None)
    broker.publish("orders", b"one")
    running.until(lambda: broker.finished)
    gevent.sleep(0.5)
    assert [connection.topic for connection in broker.connections()] == ["orders"]
    running.stop()


def test_where_nobody_could_find_it_again_it_stays_with_the_broker(
    broker: Any, limited: Any, run: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Rather too early than never."""

    def silent(topic: str, channel: str) -> dict[str, int]:
        raise BrokerUnreachable("nsqd does not answer HTTP")

    broker.backlog = silent
    attempts: list[int] = []

    def handle(message: Message) -> None:
        attempts.append(message.attempts)
        if len(attempts) < 3:
            raise Retry("later", delay=30)

    running = run(handle, dead=limited)
    running.until(lambda: running.supervisor.ready)
    gevent.sleep(0.1)
    broker.publish("orders", b"one")
    running.until(lambda: attempts == [1, 2, 3])
    assert (
        "cannot wait for 30 s in topic orders.billing.later (nsqd does not answer HTTP); delivered again in 0.3 s" in caplog.text
    )
    running.stop()


@pytest.mark.real
@pytest.mark.slow
def test_on_a_real_nsqd_a_worker_that_starts_later_takes_over(nsqd: Server) -> None:
    [transport] = open_transports([f"nsq://{nsqd.address}?http_port={nsqd.http_port}"])
    transport.capabilities = replace(transport.capabilities, max_defer=1.0)
    publisher = Publisher([transport])
    seen: list[Delivery] = []

    def handle(message: Message) -> None:
        seen.append(Delivery(message))
        if len(seen) == 1:
            raise Retry("later", delay=4.0)

    def work_until(condition: Callable[[], bool]) -> None:
        supervisor = Supervisor([make_spec(handle, "orders", "billing")], [transport], publish=publisher.publish)
        greenlet = gevent.spawn(supervisor.run)
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            gevent.sleep(0.02)
        supervisor.stop()
        greenlet.get(timeout=30)
        assert supervisor.ledgers["orders/billing"].balance(0) == 0

    publisher.publish("orders", b"body")
    work_until(lambda: len(seen) == 1 and nsqd.channel_stats("orders", "billing")["depth"] == 0)
    work_until(lambda: len(seen) == 2)
    check(*seen, delay=4.0)
    publisher.close()
    for topic in ("orders", "orders.billing.later"):
        stats = nsqd.channel_stats(topic, "billing")
        assert (stats["depth"], stats["in_flight_count"], stats["deferred_count"]) == (0, 0, 0)
