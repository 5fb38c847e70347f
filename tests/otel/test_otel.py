"""What a worker tells OpenTelemetry, kept by the SDK's in-memory exporter: greenlets, threads and slot processes alike."""

from __future__ import annotations

import re
import socket
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from framework.publisher import Publisher
from framework.testing.servers import ROOT, Server
from framework.testing.workers import call, working
from tests.otel.collector import collecting, no_good
from tests.otel.conftest import Kept, write_shop

KINDS = ("greenlet", "thread", "process")
SHOP = """
    import time
    from opentelemetry import trace
    from framework import Batch, Message, Reject, Retry, handler, publish, publish_many

    def work(message):
        text = message.body.decode()
        with trace.get_tracer("shop").start_as_current_span("own " + text):
            time.sleep(0.05)  # others run meanwhile
            if text == "bad":
                raise ValueError("cannot do nsq://user:hunter2@host:4150/?auth_secret=hush")
            if text == "last":
                raise Reject("no such order")
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

# What the conventions ask for (semantic conventions 1.44): each attribute with its type.
REQUIRED = {"messaging.operation.name": str, "messaging.system": str}
ALLOWED = REQUIRED | {
    "error.type": str,
    "messaging.batch.message_count": int,
    "messaging.destination.name": str,
    "messaging.destination.subscription.name": str,
    "messaging.consumer.group.name": str,
    "messaging.operation.type": str,
    "messaging.client.id": str,
    "messaging.message.id": str,
    "messaging.message.body.size": int,
    "messaging.message.conversation_id": str,
    "server.address": str,
    "server.port": int,
}
OPERATIONS = {
    "send": ("SpanKind.PRODUCER", "send"),
    "process": ("SpanKind.CONSUMER", "process"),
    "receive": ("SpanKind.CLIENT", "receive"),
    "finish": ("SpanKind.CLIENT", "settle"),
    "requeue": ("SpanKind.CLIENT", "settle"),
}
"""Kind and type by name."""
OF_SPANS = (
    "messaging.client.id", "messaging.message.id", "messaging.message.body.size", "messaging.message.conversation_id",
    "messaging.batch.message_count",
)  # fmt: skip
"""Of metrics they would make a series for each message."""
METRICS = {
    "messaging.client.operation.duration": "s",
    "messaging.client.sent.messages": "{message}",
    "messaging.client.consumed.messages": "{message}",
    "messaging.process.duration": "s",
}
BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]


def wrong(kept: Kept) -> list[str]:
    """All that the conventions do not have, or miss."""
    found = []
    for span in [one for one in kept.spans if not one["name"].startswith("own ")]:
        about, (operation, _, topic) = span["attributes"], span["name"].partition(" ")
        found += not_allowed(span["name"], about, ALLOWED)
        found += [f"{span['name']}: no {name}" for name in REQUIRED if name not in about]
        kind, type_ = OPERATIONS.get(operation, ("no kind", "no type"))
        says = (
            about.get("messaging.operation.name"),
            about.get("messaging.operation.type"),
            about.get("messaging.destination.name"),
        )
        if "messaging.message.id" in about and "messaging.batch.message_count" in about:
            found.append(f"{span['name']} is of one message and of several")
        if span["kind"] != kind or says != (operation, type_, topic):
            found.append(f"{span['name']} is {span['kind']} and says {says}")
        if (span["status"]["status_code"] == "ERROR") != ("error.type" in about):
            found.append(f"{span['name']}: status and error.type do not agree")
    for name, points in kept.points.items():
        if kept.units[name] != METRICS.get(name):
            found.append(f"{name} in {kept.units[name]}")
        for point in points:
            found += not_allowed(name, point["attributes"], {one: kind for one, kind in ALLOWED.items() if one not in OF_SPANS})
            found += [f"{name}: no {one}" for one in REQUIRED if one not in point["attributes"]]
            if point.get("explicit_bounds", BUCKETS) != BUCKETS:
                found.append(f"{name}: buckets {point['explicit_bounds']}")
    return found


def not_allowed(where: str, attributes: dict[str, Any], allowed: dict[str, type]) -> list[str]:
    return [f"{where}: {name}={value!r}" for name, value in attributes.items() if type(value) is not allowed.get(name)]


def run(folder: Path, broker: str, *more: str, env: dict[str, str] | None = None, shop: str = SHOP, ready: str = "ready") -> Any:
    write_shop(folder, shop)
    return working("run", "shop", "--broker", broker, "--otel", *more, cwd=folder, env=env, ready=ready)


def send(broker: str, *bodies: str, nsqd: Server | None = None) -> None:
    """To each channel, which nsqd would otherwise make one by one, and give the first all messages."""
    if nsqd is not None:
        for path in ("topic/create?topic=orders", *(f"channel/create?topic=orders&channel={one}" for one in KINDS)):
            nsqd.http(f"/{path}", b"")
    publisher = Publisher(broker)
    for body in bodies:
        publisher.publish("orders", body)
    publisher.close()


def drained(worker: Any, folder: Path, lines: Callable[[], bool]) -> Kept:
    worker.wait_until(lines)
    assert worker.stop() == 0
    return Kept(folder)


@pytest.mark.real
@pytest.mark.parametrize("how", ["link", "parent"])
def test_spans_lead_from_publisher_to_handler_over_nsq(how: str, nsqd: Server, tmp_path: Path) -> None:
    broker = f"nsq://{nsqd.address}?headers=true"
    send(broker, "one", "two", nsqd=nsqd)
    shop = SHOP.replace("def on(message: Message): pass", "def on(message: Message): print('on\\n', end='', flush=True)")
    with run(tmp_path, broker, "--otel-producer", how, shop=shop) as worker:
        kept = drained(worker, tmp_path, lambda: worker.out.count("on") == 6)
    assert wrong(kept) == []
    processed, sent = kept.named("process orders"), {one["context"]["span_id"]: one for one in kept.named("send on")}
    assert (len(processed), len(sent)) == (6, 6)
    assert {one["attributes"]["messaging.destination.subscription.name"] for one in processed} == set(KINDS)
    assert {one["attributes"]["server.port"] for one in [*processed, *sent.values()]} == {int(nsqd.address.rpartition(":")[2])}
    assert all(len(one["attributes"]["messaging.message.id"]) == 16 for one in processed)
    own = {one["context"]["span_id"]: one for one in kept.spans if one["name"].startswith("own ")}
    by_id = {one["context"]["span_id"]: one for one in processed}
    for one in processed:
        assert one["parent_id"] is None, "a message without headers is in a trace of its own, not in that of the call before"
        assert one["links"] == []
    assert sorted(one["parent_id"] for one in own.values()) == sorted(by_id), "each call has its own span around it"
    for one in sent.values():
        assert one["parent_id"] in own
    followers = kept.named("process on")
    assert len(followers) == 6
    for one in followers:
        if how == "parent":
            assert one["links"] == []
            producer = sent.pop(one["parent_id"])
            assert producer["context"]["trace_id"] == one["context"]["trace_id"]
        else:
            assert one["parent_id"] is None
            [link] = one["links"]
            producer = sent.pop(link["context"]["span_id"])
            assert link["context"]["trace_id"] == producer["context"]["trace_id"] != one["context"]["trace_id"]
    assert kept.count("messaging.client.sent.messages", messaging_destination_name="on") == 6
    assert kept.count("messaging.client.operation.duration") == 6
    assert kept.count("messaging.client.consumed.messages") == 12
    assert kept.count("messaging.process.duration") == 12


@pytest.mark.real
def test_failures_have_their_class_and_no_secrets(nsqd: Server, tmp_path: Path) -> None:
    broker = f"nsq://{nsqd.address}"
    send(broker, "bad", "last", nsqd=nsqd)
    with run(tmp_path, broker, env={"WORKERS_OTEL": "true"}) as worker:
        kept = drained(worker, tmp_path, lambda: sum("attempt 1" in line and "failed" in line for line in worker.err) == 3
                       and sum("dead letter" in line for line in worker.err) >= 3)  # fmt: skip
    assert wrong(kept) == []
    for error in ("ValueError", "framework.errors.Reject"):
        spans = [one for one in kept.named("process orders") if one["attributes"].get("error.type") == error]
        assert {one["attributes"]["messaging.consumer.group.name"] for one in spans} == set(KINDS)
        for one in spans:
            [event] = one["events"]
            assert event["attributes"]["exception.type"] == error
            assert "in work" in event["attributes"]["exception.stacktrace"]
        assert kept.count("messaging.process.duration", error_type=error) == len(spans)
        assert kept.count("messaging.client.consumed.messages", error_type=error) == len(spans)
    sent = str([one for one in kept.spans if not one["name"].startswith("own ")])
    assert "hunter2" not in sent
    assert "hush" not in sent
    assert len(kept.named("send orders.greenlet.dead")) == 1


@pytest.mark.real
def test_over_beanstalkd_with_batches_and_a_process_that_dies(start_beanstalkd: Callable[..., Server], tmp_path: Path) -> None:
    shop = """
        import os
        from framework import Batch, Message, Middleware, Reject, handler, publish, publish_each, publish_many

        class Feed(Middleware):
            def start(self):
                publish_many("many", ["a", "b", "c"])
                publish("many", "d", headers={"Correlation-Id": "x"})
                publish_each("dies", ["e"], headers={"correlation-id": "order 7"})

        @handler("many", "all", batch=4, linger=5, middleware=[Feed()])
        def many(batch: Batch):
            for message in batch:
                if message.body == b"b":
                    batch.fail(message, Reject("no"))

        @handler("dies", "soon", slots="process", concurrency=1, max_attempts=1)
        def dies(message: Message): os._exit(3)
    """
    broker = f"beanstalkd://{start_beanstalkd().address}?headers=true"
    with run(tmp_path, broker, shop=shop) as worker:
        kept = drained(worker, tmp_path, lambda: sum("dead letter" in line for line in worker.err) >= 2)
    assert wrong(kept) == []
    [batch] = kept.named("process many")
    assert batch["attributes"]["messaging.batch.message_count"] == 4
    assert batch["attributes"]["messaging.system"] == "beanstalkd"
    producers = {
        one["context"]["span_id"]: one["attributes"].get("messaging.batch.message_count") for one in kept.named("send many")
    }
    assert sorted(producers.values(), key=str) == [3, None]
    assert {one["context"]["span_id"] for one in batch["links"]} == set(producers), "one link to each publish"
    assert kept.count("messaging.client.consumed.messages", messaging_destination_name="many", error_type="") == 3
    assert kept.count("messaging.client.consumed.messages", error_type="framework.errors.Reject") == 1
    [died] = kept.named("process dies")
    assert died["attributes"]["error.type"] == "framework.engine.slot_process.SlotDied"
    assert died["attributes"]["messaging.message.conversation_id"] == "order 7"
    [sent] = kept.named("send dies")
    assert [one["context"]["span_id"] for one in died["links"]] == [sent["context"]["span_id"]]


def test_what_is_refused_one_by_one_counts_as_failed(tmp_path: Path) -> None:
    shop = """
        from framework import Message, Middleware, PublishError, handler, publish, publish_each

        class Feed(Middleware):
            def start(self):
                assert [bool(one) for one in publish_each("a", ["x", "y", "z"])].count(True) == 3
                try: publish("a", "w")
                except PublishError: print("refused", flush=True)

        @handler("a", "b", middleware=[Feed()])
        def a(message: Message): ...
    """
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        broker = f"nsq://127.0.0.1:{closed.getsockname()[1]}"
    with run(tmp_path, broker, "--connect-deadline", "never", "--publish-timeout", "0.2", shop=shop, ready="refused") as worker:
        assert worker.stop() == 0
    kept = Kept(tmp_path)
    assert wrong(kept) == []
    assert kept.count("messaging.client.sent.messages", error_type="") == 0
    assert kept.count("messaging.client.sent.messages") == 4
    assert [one["attributes"]["messaging.batch.message_count"] for one in kept.spans if len(one["attributes"]) > 8] == [3]


def test_all_spans_and_the_sizes_of_bodies_where_they_are_asked_for(tmp_path: Path) -> None:
    shop = """
        from framework import Message, Middleware, Retry, handler, publish_each, publish_many

        class Feed(Middleware):
            def start(self):
                publish_many("orders", ["ok"] * 20)
                publish_each("orders", ["again"], headers={"a": "b"})

        @handler("orders", "bill", middleware=[Feed()])
        def bill(message: Message):
            if message.body == b"again" and message.attempts == 1: raise Retry(delay=0)
            print("done\\n", end="", flush=True)
    """
    with run(tmp_path, "memory://all", "--otel-spans", "all", "--otel-body-sizes", shop=shop) as worker:
        kept = drained(worker, tmp_path, lambda: worker.out.count("done") == 21)
    assert wrong(kept) == []

    def many(name: str) -> int:
        return sum(span["attributes"].get("messaging.batch.message_count", 1) for span in kept.named(name))

    assert (many("receive orders"), many("finish orders"), many("requeue orders")) == (22, 21, 1)
    assert len(kept.named("process orders")) == 22
    [sent] = [one for one in kept.named("send orders") if "messaging.batch.message_count" not in one["attributes"]]
    assert sent["attributes"]["messaging.message.body.size"] == 5
    assert {one["attributes"]["messaging.message.body.size"] for one in kept.named("process orders")} == {2, 5}
    linked = {link["context"]["span_id"] for one in kept.named("receive orders") for link in one["links"]}
    assert linked == {one["context"]["span_id"] for one in kept.named("send orders")}


def test_the_former_name_of_an_operation_is_there_where_both_are_asked_for(tmp_path: Path) -> None:
    env = {"OTEL_SEMCONV_STABILITY_OPT_IN": "http, messaging/dup"}
    shop = PLAIN.replace("Middleware, handler, publish_many", "Middleware, handler, publish, publish_many")
    shop = shop.replace('message: Message): print("done', 'message: Message): publish("on", "x"); print("done')
    with run(tmp_path, "memory://dup", env=env, shop=shop) as worker:
        kept = drained(worker, tmp_path, lambda: worker.out.count("done") == 300)
    assert {one["attributes"]["messaging.operation"] for one in kept.named("process orders")} == {"process"}
    assert {one["attributes"]["messaging.operation"] for one in kept.named("send on")} == {"publish"}
    assert {one["attributes"]["messaging.operation.type"] for one in kept.named("send on")} == {"send"}


PLAIN = """
    from framework import Message, Middleware, handler, publish_many

    class Feed(Middleware):
        def start(self): publish_many("orders", map(str, range(300)))

    @handler("orders", "thread", slots="thread", middleware=[Feed()])
    def bill(message: Message): print("done\\n", end="", flush=True)
"""


@pytest.mark.parametrize(("scheme", "fault"), [
    *(("http", fault) for fault in ("hangs", "down", "endless", "drips", "refuses", "redirects", "cuts")),
    *(("https", fault) for fault in ("hangs", "garbage", "cuts")),
])  # fmt: skip
def test_a_collector_that_is_no_good_is_said_once_and_stops_nothing(scheme: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(PLAIN))
    with no_good(fault) as port:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"{scheme}://user:hunter2@127.0.0.1:{port}/hunter3?api_key=hunter4",
            "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "50",
            **({} if fault in ("down", "endless") else {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}),
        }  # fmt: skip
        with working("run", "shop", "--broker", "memory://otel", "--otel", cwd=tmp_path, env=env) as worker:
            worker.wait_until(lambda: worker.out.count("done") == 300)
            worker.wait_until(lambda: any(f"at 127.0.0.1:{port} does not take" in line for line in worker.err), deadline=8)
            time.sleep(0.5 if fault == "endless" else 0)
            assert psutil.Process(worker.process.pid).memory_info().rss < 150 << 20
            began = time.monotonic()
            assert worker.stop() == 0
            assert time.monotonic() - began < 20
    assert sum("OpenTelemetry" in line or "opentelemetry" in line for line in worker.err) == 1, worker.err
    assert not [line for line in worker.err if "urllib3" in line or "Traceback" in line or "hunter" in line]


def test_it_sends_by_otlp_what_the_variables_say(tmp_path: Path) -> None:
    """Also the block of docs/opentelemetry.md: the variables and the flag are those of the page."""
    page = (ROOT / "docs" / "opentelemetry.md").read_text()
    (tmp_path / "shop.py").write_text(textwrap.dedent(PLAIN))
    with collecting() as collector:
        [said] = re.findall(r"^\$ export (.+)$", page, re.MULTILINE)
        [run] = re.findall(r"^\$ workers (.+)$", page, re.MULTILINE)
        env = {**dict(one.split("=", 1) for one in said.split()), "OTEL_BSP_SCHEDULE_DELAY": "200"}
        assert env.pop("OTEL_EXPORTER_OTLP_ENDPOINT") == "http://collector:4318"
        env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        arguments = run.replace("shop.handlers", "shop").split()
        with working(*arguments, "--broker", "memory://otlp", cwd=tmp_path, env=env) as worker:
            worker.wait_until(lambda: worker.out.count("done") == 300)
            assert worker.stop() == 0
    assert collector.spans["process orders"] == 300
    assert collector.metrics["messaging.process.duration"] == 300
    assert collector.services == {"shop"}
    assert not any("OpenTelemetry" in line for line in worker.err)


def test_without_it_nothing_of_it_is_imported(tmp_path: Path) -> None:
    shop = """
        import sys
        from framework import Middleware, handler

        class Look(Middleware):
            def start(self):
                ours = ("opentelemetry", "framework.otel")
                print("imported:", [one for one in sys.modules if one.startswith(ours)], flush=True)

        @handler("orders", "bill", middleware=[Look()])
        def bill(text: str): ...
    """
    (tmp_path / "shop.py").write_text(textwrap.dedent(shop))
    with working("run", "shop", "--broker", "memory://off", cwd=tmp_path, ready="imported: []") as worker:
        assert worker.stop() == 0


def test_an_exporter_that_is_not_there_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from framework import handler\n@handler('a', 'b')\ndef a(text: str): ...\n")
    env = {"OTEL_TRACES_EXPORTER": "zipkin"}
    done = call("run", "shop", "--broker", "memory://x", "--otel", cwd=tmp_path, env=env)
    assert done.returncode == 2
    assert "no exporter 'zipkin' of traces is here" in done.stderr
    assert len(done.stderr.splitlines()) == 1
