"""Delays that are longer than the broker takes, end to end: nothing comes too early, and another worker can take over."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import gevent.event
import pytest

from framework.engine import later_dialler as later
from framework.engine.supervisor import Supervisor
from framework.errors import BrokerUnreachable, Retry
from framework.handler import make_spec
from framework.hooks import Middleware
from framework.message import Batch, Message
from framework.middleware.envelope import Header, sealed
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


@pytest.mark.parametrize("batch", [0, 1])
def test_the_first_that_comes_back_is_opened_also_by_a_slot_that_was_busy_when_it_came(
    broker: Any, limited: Any, run: Callable[..., Any], batch: int
) -> None:
    """Until then its slots knew messages of the handler's topic only."""
    seen: list[bytes] = []
    gate = gevent.event.Event()

    def handle(job: Any) -> None:
        [message] = job if batch else [job]
        seen.append(message.body)
        if message.body == b"again" and message.attempts == 1:
            raise Retry("later", delay=0.5)
        if message.body == b"long":
            gate.wait()

    running = run(handle, dead=limited, concurrency=1, batch=batch, linger=0.01)
    broker.publish("orders", b"again", b"long")

    def back() -> bool:
        connections = [one for node in broker.nodes.values() for one in node.connections if one.topic.endswith(".later")]
        return any(one.in_flight for one in connections)

    running.until(back)
    gevent.sleep(0.6)
    gate.set()
    running.until(lambda: len(seen) == 3)
    assert seen == [b"again", b"long", b"again"]
    running.stop()


def test_a_message_that_came_back_is_touched_from_a_slot_process_by_its_envelope(
    broker: Any, limited: Any, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "modules"))
    jobs = importlib.import_module("process_jobs")
    running = run(jobs.touch_when_it_comes_back, dead=limited, slots="process", concurrency=1)
    broker.publish("orders", b"one")
    running.until(lambda: any(one.touches for one in broker.connections() if one.topic == "orders.billing.later"))
    running.until(lambda: not any(one.in_flight for one in broker.connections()))
    assert running.stop()["finished"] == 1


@pytest.mark.parametrize("batch", [0, 5])
def test_middleware_hears_of_the_message_and_not_of_its_envelopes(
    broker: Any, limited: Any, run: Callable[..., Any], batch: int
) -> None:
    heard: list[tuple[str, bytes, int, str]] = []

    class Hears(Middleware):
        def after(self, message: Message, outcome: str) -> None:
            heard.append((message.topic, message.body, message.attempts, outcome))

    def handle(job: Any) -> None:
        for message in job if batch else [job]:
            if message.attempts == 1:
                raise Retry("later", delay=1.0)

    running = run(handle, dead=limited, middleware=(Hears(),), batch=batch, linger=0.01)
    broker.publish("orders", b"one")
    running.until(lambda: len(heard) == 2)
    assert running.stop()["requeued"] > 1, "hops"
    assert heard == [("orders", b"one", 1, "requeued"), ("orders", b"one", 2, "finished")]


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


def test_a_retry_that_does_not_count_comes_again_with_the_attempts_it_had(
    broker: Any, limited: Any, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a broker that counts deliveries and takes short delays; the first one is fetched at once, not at the next poll."""
    monkeypatch.setattr(later, "POLL", 60.0)
    attempts: list[int] = []

    def handle(message: Message) -> None:
        attempts.append(message.attempts)
        if len(attempts) < 6:
            raise Retry("one at a time", delay=0.01, count=False)

    running = run(handle, dead=limited, max_attempts=2)
    broker.publish("orders", b"one")
    running.until(lambda: len(attempts) == 6)
    assert attempts == [1] * 6
    ledger = running.stop()
    assert (ledger["finished"], ledger["requeued"], ledger["dead"]) == (1, 5, 0)


@pytest.mark.real
@pytest.mark.slow
def test_it_does_so_on_a_real_nsqd_and_from_one_worker_to_the_next(nsqd: Server) -> None:
    url = f"nsq://{nsqd.address}?http_port={nsqd.http_port}"
    attempts: list[int] = []

    def handle(message: Message) -> None:
        attempts.append(message.attempts)
        if len(attempts) < 6:
            raise Retry("one at a time", delay=0.3, count=False)

    publisher = Publisher([url])
    publisher.publish("orders", b"body")
    for wanted in (3, 6):
        supervisor = Supervisor(
            [make_spec(handle, "orders", "billing", {"max_attempts": 2})], open_transports([url]), publish=publisher.publish
        )
        greenlet = gevent.spawn(supervisor.run)
        deadline = time.monotonic() + 60
        while len(attempts) < wanted:
            assert time.monotonic() < deadline
            gevent.sleep(0.01)
        supervisor.stop()
        greenlet.get(timeout=30)
        assert supervisor.ledgers["orders/billing"].dead == 0
    publisher.close()
    assert set(attempts) == {1}


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
def test_another_reader_that_comes_first_does_not_get_what_waits_for_the_handler_alone(start_nsqd: Callable[..., Server]) -> None:
    """An archiver of all topics, or an app whose names make the same topic: what nsqd takes is for the channels there are."""
    nsqd = start_nsqd()
    [transport] = open_transports([f"nsq://{nsqd.address}?http_port={nsqd.http_port}"])
    for call in ("topic/create?topic=orders.billing.later", "channel/create?topic=orders.billing.later&channel=archive"):
        nsqd.http(f"/{call}", b"")
    publisher = Publisher([transport])
    seen: set[bytes] = set()
    done: set[bytes] = set()

    def handle(message: Message) -> None:
        if message.body not in seen:
            seen.add(message.body)
            raise Retry("one at a time", delay=0.1, count=False)
        done.add(message.body)

    publisher.publish_many("orders", [b"%d" % number for number in range(20)])
    supervisor = Supervisor([make_spec(handle, "orders", "billing")], [transport], publish=publisher.publish)
    greenlet = gevent.spawn(supervisor.run)
    deadline = time.monotonic() + 20
    while len(done) < 20 and time.monotonic() < deadline:
        gevent.sleep(0.02)
    supervisor.stop()
    greenlet.get(timeout=30)
    publisher.close()
    assert len(done) == 20


@pytest.mark.real
@pytest.mark.slow
def test_on_a_real_nsqd_with_a_short_limit_a_worker_that_starts_later_takes_over(start_nsqd: Callable[..., Server]) -> None:
    nsqd = start_nsqd("--max-req-timeout=1s")
    [transport] = open_transports([f"nsq://{nsqd.address}?http_port={nsqd.http_port}"])
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


def strangers(number: int, *, due: float = 0.0, owner: tuple[str, str] = ("orders.eu", "billing")) -> bytes:
    """An envelope of another app's, whose names make the same topic."""
    header = Header(*owner, f"{number:016x}", "a:4150", 1_700_000_000_000_000_000, 1, due)
    return sealed(header, b"%d" % number)


@pytest.mark.real
def test_the_copies_of_strangers_are_not_looked_at_all_the_time_where_nsqd_keeps_no_delay(
    start_nsqd: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later, "REST", 1.0)
    nsqd = start_nsqd("--max-req-timeout=0s")
    [transport] = open_transports([f"nsq://{nsqd.address}?http_port={nsqd.http_port}"])
    room = "orders.eu.billing.later"
    nsqd.http(f"/topic/create?topic={room}", b"")
    for channel in ("eu.billing", "billing"):
        nsqd.http(f"/channel/create?topic={room}&channel={channel}", b"")
    for number in range(5):
        nsqd.http(f"/pub?topic={room}", strangers(number))
    nsqd.http(f"/pub?topic={room}", strangers(9, owner=("orders", "eu.billing")))
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        seen.append(message.body)
        gevent.sleep(0.3)  # while it runs its connection stands

    publisher = Publisher([transport])
    supervisor = Supervisor([make_spec(handle, "orders", "eu.billing")], [transport], publish=publisher.publish)
    greenlet = gevent.spawn(supervisor.run)

    def looks() -> int:
        return int(nsqd.channel_stats(room, "eu.billing")["requeue_count"])

    deadline = time.monotonic() + 20
    while looks() < 5 or not seen:
        assert time.monotonic() < deadline
        gevent.sleep(0.05)
    gevent.sleep(2.5)
    assert 5 < looks() <= 60, "each of them a few times in each rest, and again after it"
    supervisor.stop()
    greenlet.get(timeout=30)
    publisher.close()
    assert seen == [b"9"]
    stats = nsqd.channel_stats(room, "eu.billing")
    assert (stats["depth"] + stats["deferred_count"], stats["timeout_count"]) == (5, 0)
    ledger = supervisor.ledgers["orders/eu.billing"]
    assert (ledger.finished, ledger.dead, ledger.lease_lost, ledger.balance(0)) == (1, 0, 0, 0)
