"""What Sentry is told of calls and publishes, value by value, and of which failures it is told: with the SDK alone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
import sentry_sdk
from sentry_sdk.transport import HttpTransport

from framework import message as of_message
from framework import published, sentry
from framework.errors import Backoff, HandlerTimeout, Reject, Retry, Skip
from framework.handler import make_spec
from framework.message import Batch
from framework.sentry import publishing, transport
from framework.sentry.options import Options, of_settings
from framework.sentry.publishing import ID, traced
from framework.sentry.transport import NativeThread, Transport
from framework.sentry.watch import BODY, Watch
from framework.settings import Settings
from tests.sentry.test_watch import TRACE, called, items, message

__all__ = ["items"]
Items = list[Any]


@pytest.fixture(autouse=True)
def _no_tracer_left() -> Iterator[None]:
    before = published.tracer
    yield
    published.tracer = before


def watch(options: Options | None = None, **more: Any) -> Watch:
    return Watch(make_spec(lambda one: None, "orders", "billing", {"max_attempts": 5, **more}), options or Options())


def events(items: Items) -> list[dict[str, Any]]:
    return [content for kind, content in items if kind == "event"]


def span_of(items: Items) -> dict[str, Any]:
    (transaction,) = [content for kind, content in items if kind == "transaction"]
    (span,) = transaction["spans"]
    return span  # type: ignore[no-any-return]


def told_of(span: dict[str, Any]) -> dict[str, Any]:
    """But for how long it has waited."""
    return {name: value for name, value in span["data"].items() if name.startswith("messaging") and "latency" not in name}


# --- calls -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bodies", [True, False])
def test_an_event_of_one_message_has_its_tags_and_its_body_where_that_is_asked_for(bodies: bool, items: Items) -> None:
    one = message(7, attempts=3)
    one.body = b"\xff" + b"x" * 5000
    called(watch(Options(bodies=bodies)), one, OSError("disk full"))
    [event] = events(items)
    assert event["tags"] == {
        "handler": "orders/billing", "topic": "orders", "channel": "billing", "id": f"{7:016}", "attempts": "3"
    }  # fmt: skip
    about = event["contexts"]["message"]
    assert (about["node"], about["published"][:10], about["size"]) == ("a:4150", "2023-11-14", 5001)
    assert about.get("body") == (("\\xff" + "x" * (BODY - 1)) if bodies else None)
    assert (event["transaction"], event["fingerprint"]) == ("orders/billing", ["orders/billing", "builtins.OSError"])
    assert event["exception"]["values"][-1]["mechanism"] == {"type": "nsq-workers", "handled": False}


def test_an_event_of_several_says_how_many_and_shows_no_body(items: Items) -> None:
    later = message(2, attempts=4, timestamp=1_800_000_000_000_000_000)
    called(watch(Options(bodies=True)), Batch([message(1, attempts=2), later]), OSError("disk full"))
    [event] = events(items)
    assert event["tags"] == {
        "handler": "orders/billing", "topic": "orders", "channel": "billing", "messages": "2", "attempts": "4"
    }  # fmt: skip
    assert not {"body", "size"} & event["contexts"]["message"].keys()
    assert event["contexts"]["message"]["published"][:4] == "2023", "that of the first"


def test_the_span_of_a_call_has_what_the_queues_module_reads(items: Items) -> None:
    called(watch(Options(system="nsq")), message(7, attempts=3))
    span = span_of(items)
    about = told_of(span)
    assert about == {
        "messaging.destination.name": "orders", "messaging.message.body.size": 4, "messaging.message.retry.count": 2,
        "messaging.message.id": f"{7:016}", "messaging.system": "nsq",
    }  # fmt: skip
    assert (span["op"], span["description"], span["origin"]) == ("queue.process", "orders/billing", "auto.queue.nsq_workers")
    items.clear()
    called(watch(), Batch([message(1, attempts=1), message(2, attempts=4)]))
    about = {
        name: value for name, value in span_of(items)["data"].items() if name.startswith("messaging") and "latency" not in name
    }
    assert about == {
        "messaging.destination.name": "orders", "messaging.message.body.size": 8, "messaging.message.retry.count": 3,
        "messaging.batch.message_count": 2,
    }  # fmt: skip


def test_a_message_is_called_by_the_id_that_its_publisher_gave_it(items: Items) -> None:
    one = message(1, TRACE)
    one.headers = {**one.headers, ID: "of-the-publisher"}
    called(watch(), one)
    assert span_of(items)["data"]["messaging.message.id"] == "of-the-publisher"


@pytest.mark.parametrize(
    ("error", "attempts", "each", "dead"),
    [
        (OSError("x"), 1, 1, 0),
        (OSError("x"), 5, 1, 1),
        (Retry(delay=1), 1, 0, 0),
        (Retry(delay=1), 5, 1, 1),
        (Retry(delay=1, count=False), 5, 0, 0),
        (Backoff("down"), 1, 0, 0),
        (Backoff("down"), 5, 1, 1),
        (Skip("done"), 5, 0, 0),
        (Reject("no"), 1, 1, 1),
        (HandlerTimeout("late"), 1, 1, 0),
    ],
)
def test_what_is_asked_for_is_no_failure_unless_it_was_the_last_attempt(
    error: Exception, attempts: int, each: int, dead: int, items: Items
) -> None:
    called(watch(), message(attempts=attempts), error)
    assert len(events(items)) == each
    items.clear()
    called(watch(Options(events="dead")), message(attempts=attempts), error)
    assert len(events(items)) == dead


def test_a_timeout_is_the_end_of_a_message_where_it_is_rejected_for_that(items: Items) -> None:
    rejects = watch(Options(events="dead"), on_timeout="reject")
    called(rejects, message(attempts=1), HandlerTimeout("late"))
    assert len(events(items)) == 1
    gone = message(attempts=1)
    del gone.connection.in_flight[gone]
    called(rejects, Batch([gone, message(2, attempts=1)]), HandlerTimeout("late"))
    assert len(events(items)) == 2, "another of the batch is here"


def test_of_a_batch_one_whose_last_attempt_it_was_is_enough(items: Items) -> None:
    called(watch(Options(events="dead")), Batch([message(1, attempts=1), message(2, attempts=5)]), OSError("x"))
    assert len(events(items)) == 1


@pytest.mark.parametrize(("seconds", "told"), [(5.0, 0), (0.5, 1)])
def test_a_timeout_that_another_call_left_running_is_no_failure_of_this_one(
    seconds: float, told: int, items: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_a_second_ago: Any = SimpleNamespace(ends_at=lambda one: time.monotonic() + 29.0)
    monkeypatch.setattr(of_message, "calls_of", SimpleNamespace(get=lambda connection: began_a_second_ago))
    called(watch(timeout=30.0), message(), gevent.Timeout(seconds))
    assert len(events(items)) == told


def test_what_was_given_back_meanwhile_is_no_failure_of_this_call(items: Items) -> None:
    gone = message()
    del gone.connection.in_flight[gone]
    called(watch(), gone, OSError("x"))
    assert events(items) == []
    called(watch(), Batch([gone, message(2)]), OSError("x"))
    assert len(events(items)) == 1, "another of the batch is here"


def test_of_a_batch_with_its_own_failures_and_one_of_all_each_is_told(items: Items) -> None:
    batch = Batch([message(1), message(2)])
    batch.fail(batch.messages[0], ValueError("its own"))
    called(watch(), batch, OSError("of all"))
    assert sorted(one["exception"]["values"][-1]["type"] for one in events(items)) == ["OSError", "ValueError"]


# --- what the worker ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["one", "batch", "list"])
def test_a_call_that_was_ended_is_told_of_once_whatever_it_was_for(kind: str, items: Items) -> None:
    some = [message(1), message(2)]
    job: Any = {"one": some[0], "batch": Batch(some), "list": some}[kind]
    error = HandlerTimeout("late")
    watch().missed(job, error)
    watch().missed(job, error)
    [event] = events(items)
    assert event["tags"].get("messages") == (None if kind == "one" else "2")
    assert (event["transaction"], event["transaction_info"]) == ("orders/billing", {"source": "task"})


def test_ctrl_c_is_no_failure_of_a_message_and_what_looks_like_it_is_one(items: Items) -> None:
    watch().missed(message(), KeyboardInterrupt())
    called(watch(), message(), KeyboardInterrupt())
    assert events(items) == []
    watch().missed(message(), SystemExit(3))
    called(watch(), message(), SystemExit(3))
    assert len(events(items)) == 2


@pytest.mark.parametrize(
    ("limit", "attempts", "outcome", "told"),
    [(5, 6, "dead", 1), (5, 5, "dead", 0), (5, 6, "requeued", 0), (0, 60_000, "dead", 0)],
)
def test_a_message_that_is_given_up_before_its_call_is_told_of(
    limit: int, attempts: int, outcome: Any, told: int, items: Items
) -> None:
    watch(max_attempts=limit).after(message(attempts=attempts), outcome)
    assert [(one["fingerprint"], one["level"]) for one in events(items)] == [(["orders/billing", "no answer"], "error")] * told


# --- publishes ---------------------------------------------------------------------------------------------


def publishing_of(*bodies: bytes, carried: bool) -> dict[str, str]:
    with traced("mail", bodies, carried=carried, answers=()) as headers:
        return dict(headers)


@pytest.mark.parametrize("carried", [True, False])
def test_a_publish_in_a_traced_call_is_a_span_and_its_headers_lead_back_to_it(carried: bool, items: Items) -> None:
    assert publishing_of(b"x", carried=carried) == {}, "outside of calls it does nothing"
    assert items == []
    sent: list[dict[str, str]] = []
    for bodies in ((b"123",), (b"1", b"22")):
        watch().around(message(), lambda bodies=bodies: sent.append(publishing_of(*bodies, carried=carried)))
    spans = [
        span for kind, content in items if kind == "transaction" for span in content["spans"] if span["op"] == "queue.publish"
    ]
    about = [{key: value for key, value in span["data"].items() if key.startswith("messaging")} for span in spans]
    assert [span["description"] for span in spans] == ["mail"] * 2
    assert [one["messaging.destination.name"] for one in about] == ["mail"] * 2
    assert [one["messaging.message.body.size"] for one in about] == [3, 3]
    assert [one.get("messaging.batch.message_count") for one in about] == [None, 2]
    assert [one.get("messaging.message.id") for one in about] == [about[0]["messaging.message.id"], None]
    if not carried:
        assert sent == [{}, {}]
        return
    assert [one["sentry-trace"].split("-")[:2] for one in sent] == [[span["trace_id"], span["span_id"]] for span in spans]
    assert [one.get(publishing.ID) for one in sent] == [about[0]["messaging.message.id"], None]


# --- the client --------------------------------------------------------------------------------------------


def test_its_options_are_those_of_the_settings_and_travel_to_slot_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = of_settings(Settings(brokers=("nsq://a:1",), sentry_dsn="http://k@h/1", sentry_events="dead", sentry_traces=0.5))
    assert found == Options("http://k@h/1", "dead", 0.5, False, "nsq")
    assert of_settings(Settings(brokers=("nsq://a:1", "beanstalkd://b:1"), sentry_bodies=True)) == Options(bodies=True)
    started: list[Options] = []
    monkeypatch.setattr(sentry, "start", started.append)
    own: Any = SimpleNamespace()
    spec = replace(make_spec(lambda one: None, "orders", "billing", {}), middleware=(own,))
    [one] = sentry.watched([spec], found)
    assert [type(each) for each in one.middleware] == [Watch, SimpleNamespace], "outside of all else"
    room, packed = one.middleware[0].elsewhere()
    assert room == "framework.sentry"
    [there, _] = sentry.observe(spec, packed).middleware
    assert isinstance(there, Watch)
    assert there._options == found
    assert started == [found, found]


def test_an_app_keeps_its_client_and_what_is_told_is_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    quiet: list[str] = []
    monkeypatch.setattr(sentry_sdk, "init", lambda **options: made.append(options))
    monkeypatch.setattr(sentry, "ignore_logger", quiet.append)
    for active, inits in ((True, 0), (False, 1)):
        monkeypatch.setattr(sentry_sdk, "get_client", lambda active=active: SimpleNamespace(is_active=lambda: active))
        published.tracer = None
        sentry.start(Options(dsn="http://key@127.0.0.1:1/1"))
        assert (len(made), published.tracer) == (inits, traced)
    assert quiet == ["framework.middleware.retry", "framework.middleware.dead_letter", "framework.middleware.batch"] * 2
    [options] = made
    event = {"message": "at nsq://user:hunter2@host:1/", "extra": [{"url": "nsq://u:hunter2@h/"}]}
    for name in ("before_send", "before_send_transaction"):
        assert "hunter2" not in str(options[name](event, {}))
    assert (options["dsn"], options["transport"], options["in_app_exclude"]) == (
        "http://key@127.0.0.1:1/1", Transport, ["framework"]
    )  # fmt: skip
    [integration] = options["integrations"]
    assert integration.callback(3, 2.0) is None


# --- its thread and its requests ---------------------------------------------------------------------------


def test_that_sentry_takes_events_again_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(HttpTransport, "on_dropped_event", lambda self, reason: None)
    handled: list[Any] = []
    monkeypatch.setattr(HttpTransport, "_handle_response", lambda self, response, envelope: handled.append(envelope))
    one = object.__new__(Transport)
    said = []
    for status in (200, None, 199, 300, 500, 299, 200, None, 200):
        caplog.clear()
        if status is None:
            one.on_dropped_event("network")
        else:
            one._handle_response(SimpleNamespace(status=status), status)
        said.append([line.split(" (")[0] for line in caplog.messages])
    down, again = ["Sentry does not take events"], ["Sentry takes events again"]
    assert said == [[], down, [], [], [], again, [], down, again]
    assert handled == [200, 199, 300, 500, 299, 200, 200], "by the SDK as well"


def test_a_request_is_made_once_and_its_answer_read_as_far_as_it_says_something(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    one = object.__new__(Transport)
    one._auth = SimpleNamespace(get_api_url=lambda kind: f"http://h/{kind}")  # type: ignore[assignment]
    answer = SimpleNamespace(headers={"X-Own": "1"}, status=429)
    one._pool = SimpleNamespace(request=lambda *what, **how: (asked.append((what, how)), answer)[1])  # type: ignore[assignment]
    monkeypatch.setattr(transport, "beginning_of", lambda raw: b"begins" if raw is answer else b"")
    found = one._request("POST", "envelope", b"x", {"A": "b"})
    assert (found.status, found.headers["X-Own"], found.data) == (429, "1", b"begins")
    assert asked == [(("POST", "http://h/envelope"), {"body": b"x", "headers": {"A": "b"}, "preload_content": False})]
    monkeypatch.setattr(HttpTransport, "_get_pool_options", lambda self: {"num_pools": 2})
    options = one._get_pool_options()
    assert (options["num_pools"], options["retries"].total) == (2, 0)
    worker = one._create_worker({"transport_queue_size": 7})
    assert isinstance(worker, NativeThread)
    assert worker._size == 7


def test_a_forked_child_has_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(transport, "_start_new_thread", lambda *what: started.append(what))
    one = NativeThread(2)
    assert (one.is_alive, one.full()) == (False, False), "the SDK asks before anything is sent"
    assert [one.submit(int) for _ in range(3)] == [True, True, False]
    assert (len(started), one.is_alive, one.full()) == (1, True, True)
    monkeypatch.setattr(transport.os, "getpid", lambda: -1)
    assert not one.is_alive
    one.flush(60.0)
    one.kill()
    assert one.submit(int), "what waits is the parent's"
    assert (len(started), one._queue.qsize()) == (2, 1)


def test_who_waits_for_the_thread_lets_others_go_on_and_waits_no_longer_than_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go, sleeps = threading.Event(), []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 3:
            go.set()

    one = NativeThread(9)
    one.submit(lambda: go.wait(60))
    one.flush(0.02)
    assert not go.is_set()
    monkeypatch.setattr(transport.time, "sleep", sleep)
    one.flush(2.0)
    one.kill()
    assert sleeps[:3] == [transport.LOOK] * 3


def test_the_end_of_the_thread_is_the_end_of_the_hub_that_was_made_in_it() -> None:
    """And of its loop, which has file descriptors."""
    loops: list[Any] = []
    one = NativeThread(9)
    one.submit(lambda: loops.append(gevent.get_hub().loop))
    one.flush(20.0)
    assert "destroyed" not in repr(loops[0])
    one.kill()
    with gevent.Timeout(20):
        while "destroyed" not in repr(loops[0]):
            gevent.sleep(0.001)


def test_what_fails_in_the_thread_costs_nothing_else_and_a_flush_has_its_end() -> None:
    done: list[int] = []
    one = NativeThread(9)
    one.submit(lambda: 1 // 0)
    one.submit(lambda: done.append(1))
    one.flush(20.0)
    assert done == [1]
    one.kill()
    assert not one.is_alive
