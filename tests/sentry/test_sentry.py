"""What a worker tells Sentry, seen by an endpoint that takes its envelopes: greenlets, threads and slot processes alike."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from framework.testing.servers import Server
from framework.testing.workers import call, working
from tests.otel.collector import no_good

SHOP = """
    import logging, time
    from framework import Message, Reject, Retry, handler, publish

    log = logging.getLogger("shop")

    def work(message):
        text = message.body.decode()
        log.info("crumb of %s", text[:2])
        time.sleep(0.05)  # others run meanwhile
        if text.startswith("bad"):
            raise ValueError("cannot do nsq://user:hunter2@host:4150/?auth_secret=hush")
        if text.startswith("reject"):
            raise Reject("no such order")
        if text.startswith("again"):
            raise Retry(delay=60)
        if text.startswith("on"):
            publish("on", text)

    @handler("orders", "greenlet", max_attempts=9)
    def in_greenlet(message: Message): work(message)

    @handler("orders", "thread", max_attempts=9, slots="thread")
    def in_thread(message: Message): work(message)

    @handler("orders", "process", max_attempts=9, slots="process", concurrency=1)
    def in_process(message: Message): work(message)

    @handler("on", "next")
    def on(message: Message): pass
"""
KINDS = ("greenlet", "thread", "process")


def run(folder: Path, broker: str, *more: str, env: dict[str, str], shop: str = SHOP, ready: str = "ready") -> Any:
    (folder / "shop.py").write_text(textwrap.dedent(shop))
    return working("run", "shop", "--broker", broker, *more, cwd=folder, env=env, ready=ready)


def send(nsqd: Server, *bodies: str, topic: str = "orders", channels: tuple[str, ...] = KINDS) -> None:
    """To each of the channels, which nsqd would otherwise make one by one, and give the first all messages."""
    for path in (f"topic/create?topic={topic}", *(f"channel/create?topic={topic}&channel={one}" for one in channels)):
        nsqd.http(f"/{path}", b"")
    for body in bodies:
        nsqd.http(f"/pub?topic={topic}", body.encode())


def by(events: list[dict[str, Any]], tag: str) -> Counter[str]:
    return Counter(event["tags"][tag] for event in events)


@pytest.mark.real
def test_each_failure_is_one_event_with_a_scope_of_its_own(nsqd: Server, endpoint: Any, tmp_path: Path) -> None:
    send(nsqd, "ok1", "bad order 1", "again1", "reject1", "bad order 2", "ok2")
    with run(tmp_path, f"nsq://{nsqd.address}", env={"SENTRY_DSN": endpoint.dsn}) as worker:
        worker.wait_until(lambda: len([one for one in endpoint.events if one["tags"]["attempts"] == "1"]) == 9)
        assert worker.stop() == 0
    failures = Counter((one["tags"]["channel"], one["tags"]["id"], one["tags"]["attempts"]) for one in endpoint.events)
    assert set(failures.values()) == {1}, "one failure was several events"
    events = [one for one in endpoint.events if one["tags"]["attempts"] == "1"]
    assert by(events, "channel") == dict.fromkeys(KINDS, 3)
    assert by(events, "handler") == {f"orders/{kind}": 3 for kind in KINDS}
    assert Counter(event["exception"]["values"][-1]["type"] for event in events) == {"ValueError": 6, "Reject": 3}
    for event in events:
        tags, raised = event["tags"], event["exception"]["values"][-1]
        assert (tags["topic"], tags["attempts"], len(tags["id"])) == ("orders", "1", 16)
        assert event["transaction"] == tags["handler"]
        kind = {"ValueError": "builtins.ValueError", "Reject": "framework.errors.Reject"}[raised["type"]]
        assert event["fingerprint"] == [tags["handler"], kind]
        assert raised["stacktrace"]["frames"][-1]["function"] == "work", "its frames came from where it was raised"
        crumbs = [crumb["message"] for crumb in event["breadcrumbs"]["values"] if crumb["category"] == "shop"]
        assert len(crumbs) == 1, f"breadcrumbs of other messages: {crumbs}"
    sent = b"".join(endpoint.raw)
    for secret in (b"hunter2", b"hush", b"secret-of-dsn", b"bad order"):
        assert secret not in sent, f"{secret!r} is in an event"


@pytest.mark.real
def test_only_dead_letters_are_events_where_that_is_asked_for(nsqd: Server, endpoint: Any, tmp_path: Path) -> None:
    send(nsqd, "bad1", "reject1")
    with run(tmp_path, f"nsq://{nsqd.address}", "--sentry-events", "dead", "--sentry-bodies", "true",
             env={"SENTRY_DSN": endpoint.dsn}) as worker:  # fmt: skip
        endpoint.wait_for("event", 3)
        worker.wait_until(lambda: sum("delivered again" in line for line in worker.err) >= 3)
        assert worker.stop() == 0
    assert {event["exception"]["values"][-1]["type"] for event in endpoint.events} == {"Reject"}
    assert len(endpoint.events) == 3
    assert {event["contexts"]["message"]["body"] for event in endpoint.events} == {"reject1"}


@pytest.mark.real
def test_what_the_worker_ends_is_an_event_as_well(nsqd: Server, endpoint: Any, tmp_path: Path) -> None:
    shop = """
        import os, time
        from framework import Message, handler

        @handler("late", "thread", slots="thread", timeout=1, on_timeout="reject")
        def in_thread(message: Message):
            while not message.lease_lost: time.sleep(0.01)

        @handler("late", "process", slots="process", timeout=1, on_timeout="reject", concurrency=1)
        def in_process(message: Message): time.sleep(60)

        @handler("late", "greenlet", timeout=1, on_timeout="reject")
        def in_greenlet(message: Message): time.sleep(60)

        @handler("late", "dies", slots="process", concurrency=1, max_attempts=1)
        def dies(message: Message): os._exit(3)
    """
    send(nsqd, "x", topic="late", channels=(*KINDS, "dies"))
    with run(tmp_path, f"nsq://{nsqd.address}", env={"SENTRY_DSN": endpoint.dsn}, shop=shop) as worker:
        endpoint.wait_for("event", 4)
        assert worker.stop() == 0
    found = {event["tags"]["channel"]: event["exception"]["values"][-1]["type"] for event in endpoint.events}
    assert found == {**dict.fromkeys(KINDS, "HandlerTimeout"), "dies": "SlotDied"}
    assert len(endpoint.events) == 4


@pytest.mark.real
def test_transactions_have_the_data_of_the_queues_module_and_go_on_over_the_broker(
    nsqd: Server, endpoint: Any, tmp_path: Path
) -> None:
    send(nsqd, "on1")
    env = {"SENTRY_DSN": endpoint.dsn, "SENTRY_TRACES_SAMPLE_RATE": "1"}
    with run(tmp_path, f"nsq://{nsqd.address}?headers=true", env=env) as worker:
        endpoint.wait_for("transaction", 6)
        assert worker.stop() == 0
    spans = {}
    for one in endpoint.transactions:
        assert (one["contexts"]["trace"]["op"], one["contexts"]["trace"]["status"]) == ("queue.task", "ok")
        for span in one["spans"]:
            spans.setdefault((span["op"], one["transaction"]), []).append(span)
    assert set(spans) == {("queue.process", f"orders/{kind}") for kind in KINDS} | {
        ("queue.publish", f"orders/{kind}") for kind in KINDS
    } | {("queue.process", "on/next")}
    for kind in KINDS:
        [process], [publish] = spans["queue.process", f"orders/{kind}"], spans["queue.publish", f"orders/{kind}"]
        data = process["data"]
        assert data["messaging.destination.name"] == "orders"
        assert data["messaging.message.body.size"] == 3
        assert data["messaging.message.retry.count"] == 0
        assert 0 < data["messaging.message.receive.latency"] < 60_000
        assert len(data["messaging.message.id"]) == 16
        assert data["messaging.system"] == "nsq"
        assert process["origin"] == "auto.queue.nsq_workers"
        data = publish["data"]
        assert (data["messaging.destination.name"], data["messaging.message.body.size"]) == ("on", 3)
        [received] = [one for one in spans["queue.process", "on/next"] if one["trace_id"] == publish["trace_id"]]
        assert received["data"]["messaging.message.id"] == data["messaging.message.id"]


def test_over_the_broker_in_memory(endpoint: Any, tmp_path: Path) -> None:
    shop = """
        from framework import Batch, Message, Middleware, Reject, handler, publish

        class Feed(Middleware):
            def start(self):
                for n in range(4): publish("orders", str(n))

        @handler("orders", "bill", batch=4, linger=2, middleware=[Feed()])
        def bill(batch: Batch):
            for message in batch:
                if message.body != b"0":
                    batch.fail(message, Reject(message.body.decode()))
    """
    with run(tmp_path, "memory://sentry", "--sentry-traces", "1", env={"SENTRY_DSN": endpoint.dsn}, shop=shop) as worker:
        [event] = endpoint.wait_for("event", 1)
        [transaction] = endpoint.wait_for("transaction", 1)
        assert worker.stop() == 0
    assert len(endpoint.events) == 1, "one for each message of a batch"
    assert event["tags"]["messages"] == "3"
    [span] = transaction["spans"]
    assert span["data"]["messaging.batch.message_count"] == 4


@pytest.mark.real
@pytest.mark.parametrize(("scheme", "fault"), [
    *(("http", fault) for fault in ("hangs", "down", "endless", "drips", "refuses", "redirects", "cuts")),
    *(("https", fault) for fault in ("hangs", "garbage", "cuts")),
])  # fmt: skip
def test_an_endpoint_that_is_no_good_is_said_once_and_stops_nothing(
    scheme: str, fault: str, nsqd: Server, tmp_path: Path
) -> None:
    send(nsqd, *[f"bad{n}" for n in range(3)], *["ok"] * 20)
    shop = SHOP.replace(', slots="thread"', "").replace(', slots="process", concurrency=1', "")
    with (
        no_good(fault) as port,
        run(tmp_path, f"nsq://{nsqd.address}", env={"SENTRY_DSN": f"{scheme}://key@127.0.0.1:{port}/42"}, shop=shop) as worker,
    ):
        worker.wait_until(lambda: sum("crumb of ok" in line for line in worker.err) == 60)
        worker.wait_until(lambda: sum("failed at attempt 1" in line for line in worker.err) == 9)
        worker.wait_for("Sentry does not take events")
        assert psutil.Process(worker.process.pid).memory_info().rss < 150 << 20
        began = time.monotonic()
        assert worker.stop() == 0
        assert time.monotonic() - began < 20
    assert sum("Sentry does not take events" in line for line in worker.err) == 1
    assert not any("urllib3" in line for line in worker.err)
    assert not any("hunter2" in line for line in worker.err)


def test_without_it_the_sdk_is_not_even_imported(tmp_path: Path) -> None:
    shop = """
        import sys
        from framework import Middleware, handler

        class Look(Middleware):
            def start(self):
                heavy = ("sentry_sdk", "urllib3", "prometheus_client")
                print("imported:", [one for one in heavy if one in sys.modules], flush=True)

        @handler("orders", "bill", middleware=[Look()])
        def bill(text: str): ...
    """
    with run(tmp_path, "memory://off", env={"SENTRY_DSN": ""}, shop=shop, ready="imported: []") as worker:
        assert worker.stop() == 0


def test_a_dsn_that_is_none_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from framework import handler\n@handler('a', 'b')\ndef a(text: str): ...\n")
    done = call("run", "shop", "--broker", "memory://x", "--sentry-dsn", "https://sentry.example", cwd=tmp_path)
    assert done.returncode == 2
    assert "is not a DSN" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_app_keeps_the_client_that_it_has_made(endpoint: Any, tmp_path: Path) -> None:
    shop = f"""
        import sentry_sdk
        from framework import Middleware, Reject, handler, publish
        sentry_sdk.init(dsn={endpoint.dsn!r}, release="ours")
        sentry_sdk.add_breadcrumb(message="of the start")

        class Feed(Middleware):
            def start(self): publish("orders", "x")

        @handler("orders", "bill", middleware=[Feed()])
        def bill(text: str): raise Reject("no")
    """
    with run(tmp_path, "memory://own", env={"SENTRY_DSN": ""}, shop=shop) as worker:
        [event] = endpoint.wait_for("event", 1)
        assert worker.stop() == 0
    assert (event["release"], event["tags"]["handler"]) == ("ours", "orders/bill")
    assert event["breadcrumbs"]["values"] == [], "it has breadcrumbs of something else"
