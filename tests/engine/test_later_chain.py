"""What comes from ``.later`` has a chain of its own; all else keeps the handler's. And what its envelopes carry on the wire."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from framework.engine import slots
from framework.engine.supervisor import Supervisor
from framework.errors import Retry
from framework.handler import make_spec
from framework.message import Batch, Message
from framework.middleware.envelope import opened
from framework.observe.call import bind_records
from framework.publisher import Publisher
from framework.testing import servers
from framework.testing.servers import Server, running
from framework.transports import open_transports


def test_what_comes_from_the_handlers_own_topic_keeps_its_plain_chain(broker: Any, limited: Any, run: Callable[..., Any]) -> None:
    seen: list[bytes] = []
    broker.publish("orders.billing.later", b"no envelope")  # there is such a topic: it is subscribed to
    worker = run(lambda message: seen.append(message.body), dead=limited)
    worker.until(lambda: worker.supervisor._consumers and len(worker.supervisor._consumers[0].accounts) == 2)
    (consumer,) = worker.supervisor._consumers
    broker.publish("orders", b"plain")
    worker.until(lambda: len(seen) == 2)
    chains = {connection.topic: account.chain for connection, account in consumer.accounts.items()}
    assert chains["orders"] is consumer._chain
    assert chains["orders.billing.later"] is not consumer._chain
    ledger = worker.stop()
    assert (ledger["finished"], sorted(seen)) == (2, [b"no envelope", b"plain"])


def test_only_a_batch_with_a_message_that_waited_has_another_chain(broker: Any, limited: Any, run: Callable[..., Any]) -> None:
    seen: list[bytes] = []
    used: list[tuple[str, list[bytes]]] = []
    broker.publish("orders.billing.later", b"no envelope")

    def handle(batch: Batch) -> None:
        seen.extend(message.body for message in batch)

    def noted(name: str, chain: Callable[[list[Message]], Any]) -> Callable[[list[Message]], Any]:
        def call(messages: list[Message]) -> Any:
            used.append((name, sorted(message.body for message in messages)))
            return chain(messages)

        return call

    worker = run(handle, dead=limited, batch=2, linger=0.01)
    worker.until(lambda: worker.supervisor._consumers and len(worker.supervisor._consumers[0].accounts) == 2)
    worker.until(lambda: seen)
    (consumer,) = worker.supervisor._consumers
    (waited,) = (one for one in consumer.accounts if one.topic == "orders.billing.later")
    consumer._chain = noted("own", consumer._chain)
    consumer.accounts[waited].chain = noted("later", consumer.accounts[waited].chain)
    for bodies in ([b"one", b"two"], [b"three"]):
        broker.publish("orders", *bodies)
        worker.until(lambda: used and used[-1][1] == sorted(bodies))  # noqa: B023
    broker.publish("orders.billing.later", b"waited")
    worker.until(lambda: b"waited" in seen)
    broker.publish("orders", b"four", b"five")
    worker.until(lambda: {b"four", b"five"} <= set(seen))
    assert [name for name, bodies in used if b"waited" in bodies] == ["later"]
    assert {name for name, bodies in used if b"waited" not in bodies} == {"own"}
    worker.stop()


@pytest.mark.parametrize("kind", ["greenlet", "thread", "batch"])
@pytest.mark.usefixtures("limited")
def test_records_of_the_call_for_a_message_that_waited_name_that_message_and_not_its_envelope(
    broker: Any, run: Callable[..., Any], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.INFO)
    bind_records()
    seen: list[tuple[str, int, str]] = []

    def handle(job: Any) -> None:
        [message] = job if kind == "batch" else [job]
        logging.getLogger("app").info("at work")
        seen.append((message.id.decode(), message.attempts, message.node))
        if len(seen) == 1:
            raise Retry("later", delay=0.4)

    def publish(topic: str, body: bytes, *, delay: float = 0.0) -> None:
        broker.publish(topic)
        gevent.spawn_later(delay, broker.publish, topic, body)

    options = {"batch": 1, "linger": 0.01} if kind == "batch" else {"slots": kind}
    worker = run(handle, dead=publish, **options)
    broker.publish("orders", b"one")
    worker.until(lambda: len(seen) == 2)
    worker.stop()
    assert [attempts for _, attempts, _ in seen] == [1, 2]
    calls = [record.call for record in caplog.records if record.name == "app"]  # type: ignore[attr-defined]
    assert [(one["id"], one["attempt"], one["node"]) for one in calls] == seen
    assert {one["handler"] for one in calls} == {"orders/billing"}


@pytest.mark.parametrize("case", [{}, {"count": False}, {"batch": 2}, {"count": False, "batch": 2}], ids=str)
@pytest.mark.usefixtures("limited")
def test_a_broker_that_does_not_store_it_while_its_handler_may_run_fails_nothing_but_that(
    broker: Any, run: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    """HandlerTimeout is raised in whatever the slot does when the time is over, or when the worker stops."""
    monkeypatch.setattr(slots, "AGAIN", 0.2)
    calls: list[float] = []

    def never(topic: str, body: bytes, *, delay: float = 0.0) -> None:
        gevent.sleep(60)

    def handle(job: Any) -> None:
        calls.append(time.monotonic())
        if len(calls) == 1:
            raise Retry("later", delay=30, count=case.get("count", True))

    worker = run(handle, dead=never, timeout=0.2, batch=case.get("batch", 0), linger=0.01, concurrency=1)
    broker.publish("orders", b"one")
    worker.until(lambda: len(calls) == 2)
    ledger = worker.stop()
    assert "which is a bug" not in caplog.text
    assert "cannot wait " in caplog.text
    assert (ledger["requeued"], ledger["finished"]) == (1, 1)
    assert calls[1] - calls[0] > 0.4, "it is given back with the longest delay that the broker takes"


@pytest.fixture
def own_nsqd(tmp_path: Path) -> Iterator[Server]:
    """It looks at deferred messages at once; nsqd's own looks at new channels every five seconds."""
    with running(servers.own_nsqd(tmp_path / "data", "--max-req-timeout=400ms")) as nsqd:
        yield nsqd


def test_hops_are_counted_in_a_header_on_an_nsqd_whose_url_asks_for_headers(own_nsqd: Server) -> None:
    [transport] = open_transports([f"nsq://{own_nsqd.address}?http_port={own_nsqd.http_port}&headers=true"])
    publisher = Publisher([transport])
    transport.ensure("orders.billing.later", ["billing", "looks"])
    seen: list[tuple[int, dict[str, str]]] = []
    counted: list[tuple[str, int]] = []

    def handle(message: Message) -> None:
        seen.append((message.attempts, dict(message.headers)))
        if len(seen) == 1:
            raise Retry("later", delay=1.0)

    def look(message: Message) -> None:
        found = opened(message)
        assert found is not None
        counted.append((message.headers.get("workers-hops", ""), found[0].hops))
        assert b'"hops"' not in message.body

    specs = [make_spec(handle, "orders", "billing"), make_spec(look, "orders.billing.later", "looks")]
    publisher.publish("orders", b"body", headers={"traceparent": "00-1"})
    supervisor = Supervisor(specs, [transport], publish=publisher.publish)
    greenlet = gevent.spawn(supervisor.run)
    deadline = time.monotonic() + 30
    while len(seen) < 2 or len(counted) < 2:
        assert time.monotonic() < deadline, (seen, counted)
        gevent.sleep(0.02)
    supervisor.stop()
    greenlet.get(timeout=30)
    publisher.close()
    assert seen == [(1, {"traceparent": "00-1"}), (2, {"traceparent": "00-1"})]
    assert counted == [(str(n or ""), n) for n in range(len(counted))]
