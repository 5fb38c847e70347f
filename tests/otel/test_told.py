"""What OpenTelemetry is told of calls and publishes, attribute by attribute: with the SDK's in-memory exporter and no worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from framework import otel, published
from framework.errors import PublishError, Reject, Skip
from framework.handler import make_spec
from framework.hooks import Finished
from framework.message import Batch, Message
from framework.otel import conventions, providers
from framework.otel.conventions import Metrics, client_id, kind_of, named, server
from framework.otel.options import Options, of_settings
from framework.otel.publishing import Sending
from framework.otel.watch import SEEN, Watch, WatchAll
from framework.settings import Settings
from framework.transports.contract import Limits

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OF_CALLS = {
    "messaging.operation.name": "process", "messaging.operation.type": "process", "messaging.system": "nsq",
    "messaging.destination.name": "orders", "messaging.destination.subscription.name": "billing",
    "messaging.consumer.group.name": "billing", "server.address": "a", "server.port": 4150,
}  # fmt: skip
OF_PUBLISHES = {
    "messaging.operation.name": "send", "messaging.operation.type": "send", "messaging.system": "nsq",
    "messaging.destination.name": "mail", "server.address": "b", "server.port": 4151,
}  # fmt: skip


class NoSuchOrder(Exception):
    pass


class Origin:
    """As much of a connection as a message is asked for."""

    topic, channel, limits = "orders", "billing", Limits(60.0, 900.0, 2500)

    def __init__(self, node: str) -> None:
        self.node = node
        self.in_flight: dict[Message, float] = {}


class Told:
    """What is told, and those who tell."""

    def __init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        spans = TracerProvider()
        spans.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = spans.get_tracer("tests")
        self.metrics = Metrics(MeterProvider([self._reader]).get_meter("tests"))

    def watch(self, kind: type[Watch] = Watch, options: Options | None = None, **more: Any) -> Watch:
        spec = make_spec(several if "batch" in more else one, "orders", "billing", more)
        return kind(spec, options or Options(system="nsq"), self.tracer, self.metrics)

    def sending(self, outer: Any = None, **options: Any) -> Sending:
        return Sending(Options(**{"system": "nsq", "node": "b:4151", **options}), self.tracer, self.metrics, outer)

    @property
    def spans(self) -> list[Any]:
        """Those since it was asked last."""
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return found

    def points(self, name: str) -> list[tuple[Any, dict[str, Any]]]:
        """Count or value, and the attributes."""
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        found = json.loads(data.to_json())["resource_metrics"][0]["scope_metrics"][0]["metrics"]
        points = [point for metric in found if metric["name"] == name for point in metric["data"]["data_points"]]
        return [(point.get("value", point.get("count")), point["attributes"]) for point in points]


@pytest.fixture
def told() -> Told:
    return Told()


def one(message: Message) -> None:
    """What is decorated."""


def several(messages: Batch) -> None:
    """What is decorated."""


def message(number: int = 1, *, parent: str = "", node: str = "a:4150", body: bytes = b"body", **headers: str) -> Message:
    origin: Any = Origin(node)
    if parent:
        headers["Traceparent"] = f"00-{TRACE}-{parent}-01"
    made = Message(b"%d" % number, 1, 1, body, origin, {name.replace("_", "-"): value for name, value in headers.items()})
    origin.in_flight[made] = 0.0
    return made


def call(watch: Watch, job: Any, error: BaseException | None = None) -> None:
    def fails() -> None:
        if error is not None:
            raise error

    if error is None:
        watch.around(job, fails)
        return
    with pytest.raises(type(error)):
        watch.around(job, fails)


# --- calls -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [True, False])
def test_the_span_of_a_call_says_which_message_it_is_for(sizes: bool, told: Told) -> None:
    call(told.watch(options=Options(system="nsq", sizes=sizes)), message(7, correlation_id="order-7"))
    [span] = told.spans
    assert (span.name, span.kind, span.parent, span.status.status_code) == (
        "process orders", SpanKind.CONSUMER, None, StatusCode.UNSET
    )  # fmt: skip
    assert dict(span.attributes) == {
        **OF_CALLS, "messaging.client.id": client_id(), "messaging.message.id": "7",
        "messaging.message.conversation_id": "order-7", **({"messaging.message.body.size": 4} if sizes else {}),
    }  # fmt: skip
    assert told.points("messaging.process.duration") == [(1, OF_CALLS)]
    assert told.points("messaging.client.consumed.messages") == [(1, OF_CALLS)]


def test_the_span_of_a_batch_says_how_many_it_is_for(told: Told) -> None:
    call(told.watch(options=Options(system="nsq", sizes=True), batch=10), Batch([message(1), message(2)]))
    [span] = told.spans
    assert dict(span.attributes) == {**OF_CALLS, "messaging.client.id": client_id(), "messaging.batch.message_count": 2}
    assert told.points("messaging.client.consumed.messages") == [(2, OF_CALLS)]
    assert told.points("messaging.process.duration") == [(1, OF_CALLS)]


@pytest.mark.parametrize("parent", [True, False])
def test_a_call_leads_to_the_publish_by_a_link_or_is_its_child(parent: bool, told: Told) -> None:
    watch = told.watch(options=Options(parent=parent))
    with told.tracer.start_as_current_span("of what the app does beside"):
        call(watch, message(parent=SPAN))
        call(watch, message())
    first, second, _ = told.spans
    if parent:
        assert (first.parent.span_id, first.context.trace_id, first.links) == (int(SPAN, 16), int(TRACE, 16), ())
    else:
        assert first.parent is None
        assert [(link.context.span_id, link.context.trace_id) for link in first.links] == [(int(SPAN, 16), int(TRACE, 16))]
    assert (second.parent, second.links) == (None, ())


@pytest.mark.parametrize("parent", [True, False])
def test_a_batch_leads_to_each_publish_once(parent: bool, told: Told) -> None:
    some = [message(number, parent=SPAN[:-1] + end) for number, end in enumerate("1122")] + [message(5)]
    call(told.watch(options=Options(parent=parent), batch=10), Batch(some))
    [span] = told.spans
    assert span.parent is None
    assert [f"{link.context.span_id:x}"[-1] for link in span.links] == ["1", "2"]


def test_what_a_call_does_is_in_its_span_and_what_comes_after_is_not(told: Told) -> None:
    def works() -> None:
        told.tracer.start_span("own").end()

    told.watch().around(message(), works)
    own, span = told.spans
    assert own.parent.span_id == span.context.span_id
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ValueError("at nsq://user:hunter2@host:1/"), "ValueError", "ValueError: at nsq://host:1/"),
        (NoSuchOrder("7"), f"{__name__}.NoSuchOrder", "NoSuchOrder: 7"),
        (Reject("no"), "framework.errors.Reject", "Reject: no"),
    ],
)
def test_a_failure_is_the_status_of_its_span_and_of_the_metrics(error: Exception, kind: str, words: str, told: Told) -> None:
    call(told.watch(), message(), error)
    [span] = told.spans
    assert (span.attributes["error.type"], span.status.status_code, span.status.description) == (kind, StatusCode.ERROR, words)
    [event] = span.events
    assert (event.name, event.attributes["exception.type"], event.attributes["exception.message"]) == ("exception", kind, words)
    assert "in fails" in event.attributes["exception.stacktrace"]
    assert "hunter2" not in event.attributes["exception.stacktrace"]
    for name in ("messaging.process.duration", "messaging.client.consumed.messages"):
        assert told.points(name) == [(1, {**OF_CALLS, "error.type": kind})]
    assert getattr(error, SEEN)


def test_what_is_skipped_is_no_failure_and_what_was_lost_meanwhile_is_one(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    call(told.watch(), message(), Skip("done before"))
    late = message(2)
    monkeypatch.setattr(Message, "lease_lost", property(lambda self: self is late))
    call(told.watch(), late)
    call(told.watch(batch=10), Batch([late, message(3)]))
    skipped, lost, half = told.spans
    assert (skipped.status.status_code, "error.type" in skipped.attributes, skipped.events) == (StatusCode.UNSET, False, ())
    assert (lost.attributes["error.type"], lost.status.status_code, lost.events) == ("lease_lost", StatusCode.ERROR, ())
    assert "error.type" not in half.attributes, "another of the batch was handled"


def test_of_a_batch_those_that_failed_alone_are_counted_by_their_class(told: Told) -> None:
    batch = Batch([message(number) for number in range(5)])
    for number, error in enumerate((ValueError("a"), ValueError("b"), NoSuchOrder("c"), Skip("d"))):
        batch.fail(batch.messages[number], error)
    call(told.watch(batch=10), batch)
    found = {about.get("error.type", ""): count for count, about in told.points("messaging.client.consumed.messages")}
    assert found == {"": 2, "ValueError": 2, f"{__name__}.NoSuchOrder": 1}
    [span] = told.spans
    assert "error.type" not in span.attributes
    call(told.watch(batch=10), batch, OSError("of all"))
    found = {about.get("error.type", ""): count for count, about in told.points("messaging.client.consumed.messages")}
    assert found["OSError"] == 5


# --- what the worker ends, and tells itself ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "error", "seen", "spans"),
    [
        ("process", ValueError("it died"), False, 1), ("process", ValueError("it died"), True, 0),
        ("thread", ValueError("it died"), False, 0), ("process", KeyboardInterrupt(), False, 0),
    ],
)  # fmt: skip
def test_a_call_whose_process_died_is_told_of_with_the_time_it_ran(  # noqa: PLR0917
    slots: str, error: BaseException, seen: bool, spans: int, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Message, "seconds_left", property(lambda self: 45.0))
    if seen:
        setattr(error, SEEN, True)
    job = message(7)
    told.watch(slots=slots, concurrency=1, timeout=60.0).missed(job, error)
    found = told.spans
    assert len(found) == spans
    for span in found:
        assert span.attributes["messaging.message.id"] == "7"
        assert (span.end_time - span.start_time) / 1e9 == pytest.approx(15.0, abs=0.01)
        assert span.attributes["error.type"] == "ValueError"


@pytest.mark.parametrize(("left", "ran"), [(-5.0, 60.0), (65.0, 0.0)])
def test_it_ran_no_longer_than_it_may_and_for_no_less_than_nothing(
    left: float, ran: float, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Message, "seconds_left", property(lambda self: left))
    told.watch(slots="process", concurrency=1, timeout=60.0).missed([message(1), message(2)], ValueError("it died"))
    [span] = told.spans
    assert (span.end_time - span.start_time) / 1e9 == pytest.approx(ran, abs=0.01)
    assert told.points("messaging.client.consumed.messages")[0][0] == 2


def test_where_all_spans_are_asked_for_receiving_and_settling_have_theirs(told: Told) -> None:
    watch = told.watch(WatchAll)
    some = [message(1, parent=SPAN), message(2)]
    watch.received(some)
    watch.received(some[:1])
    for outcome in ("finished", "requeued", "dead", "lease_lost", "lost"):
        watch.ended(some[1], outcome, 1.0)  # type: ignore[arg-type]
    watch.finished(Finished("a:4150", 1, [b"1", b"2", b"3"], 1.0, 2.0, False))
    spans = told.spans
    assert [span.name for span in spans] == [
        "receive orders", "receive orders", "finish orders", "requeue orders", "finish orders", "finish orders"
    ]  # fmt: skip
    assert [span.attributes["messaging.operation.type"] for span in spans] == ["receive"] * 2 + ["settle"] * 4
    assert [span.attributes.get("messaging.batch.message_count") for span in spans] == [2, None, None, None, None, 3]
    assert [span.attributes.get("messaging.message.id") for span in spans] == [None, "1", "2", "2", "2", None]
    assert [len(span.links) for span in spans] == [1, 1, 0, 0, 0, 0]
    assert {(span.kind, span.parent, span.attributes["server.port"]) for span in spans} == {(SpanKind.CLIENT, None, 4150)}
    assert {span.attributes["messaging.destination.subscription.name"] for span in spans} == {"billing"}


# --- publishes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [True, False])
def test_a_publish_is_a_span_and_its_headers_lead_back_to_it(sizes: bool, told: Told) -> None:
    for bodies, carried in (((b"123",), True), ((b"1", b"2"), False)):
        with told.sending(sizes=sizes)("mail", bodies, carried=carried, answers=()) as headers:
            assert bool(headers) is carried
            current = trace.get_current_span().get_span_context()
            if carried:
                assert headers["traceparent"].startswith(f"00-{current.trace_id:032x}-{current.span_id:016x}-")
    alone, both = told.spans
    assert (alone.name, alone.kind) == ("send mail", SpanKind.PRODUCER)
    size = {"messaging.message.body.size": 3} if sizes else {}
    assert dict(alone.attributes) == {**OF_PUBLISHES, "messaging.client.id": client_id(), **size}
    assert dict(both.attributes) == {**OF_PUBLISHES, "messaging.client.id": client_id(), "messaging.batch.message_count": 2}
    assert told.points("messaging.client.sent.messages") == [(3, OF_PUBLISHES)]
    assert told.points("messaging.client.operation.duration") == [(2, OF_PUBLISHES)]


def test_a_publish_that_fails_is_said_with_its_class_and_so_are_those_of_many_that_were_refused(told: Told) -> None:
    with pytest.raises(PublishError), told.sending()("mail", [b"1", b"2"], carried=False, answers=()):
        raise PublishError("no", stored=False)
    answers: list[BaseException | None] = []
    with told.sending()("mail", [b"1", b"2", b"3"], carried=False, answers=answers):
        answers += [None, ValueError("no"), None]
    failed, some = told.spans
    assert [span.status.status_code for span in (failed, some)] == [StatusCode.ERROR] * 2
    assert (failed.attributes["error.type"], some.attributes["error.type"]) == ("framework.errors.PublishError", "ValueError")
    assert failed.events == ()
    found = {about.get("error.type", ""): count for count, about in told.points("messaging.client.sent.messages")}
    assert found == {"framework.errors.PublishError": 2, "": 2, "ValueError": 1}
    assert sorted(about.get("error.type", "") for _, about in told.points("messaging.client.operation.duration")) == [
        "ValueError", "framework.errors.PublishError"
    ]  # fmt: skip


def test_another_tracer_is_around_it_and_the_headers_of_both_go_along(told: Told) -> None:
    outer = told.sending(node="")
    with told.sending(outer)("mail", [b"1"], carried=True, answers=()) as headers:
        current = trace.get_current_span().get_span_context()
        assert headers["traceparent"].split("-")[2] == f"{current.span_id:016x}"
    inner, around = told.spans
    assert inner.parent.span_id == around.context.span_id


# --- names and options -------------------------------------------------------------------------------------


def test_names_are_those_of_the_conventions_and_the_former_one_where_both_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert named("settle", "nsq", "orders", "finish")["messaging.operation.name"] == "finish"
    assert "messaging.operation" not in named("send", "nsq", "orders")
    monkeypatch.setattr(conventions, "_BOTH", True)
    assert named("send", "nsq", "orders")["messaging.operation"] == "publish"
    assert named("process", "nsq", "orders")["messaging.operation"] == "process"
    assert (server(""), server("host"), server("[::1]:80")) == (
        {}, {"server.address": "host"}, {"server.address": "::1", "server.port": 80}
    )  # fmt: skip
    assert (kind_of(ValueError()), kind_of(NoSuchOrder())) == ("ValueError", f"{__name__}.NoSuchOrder")


@pytest.fixture
def _no_providers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(providers, "make", lambda: None)
    before = published.tracer
    yield
    published.tracer = before


@pytest.mark.usefixtures("_no_providers")
def test_options_are_those_of_the_settings_and_travel_to_slot_processes() -> None:
    plain = of_settings(Settings())
    assert plain == Options(system="nsq", node=Settings().nsqd_tcp_address)
    mixed = Settings(brokers=("nsq://a:1", "beanstalkd://b:2"), otel_producer="parent", otel_spans="all", otel_body_sizes=True)
    assert of_settings(mixed) == Options(parent=True, system="_OTHER", all=True, sizes=True, node="")
    assert of_settings(Settings(brokers=("nats://a:1",))).node == "a:1"
    published.tracer = None
    spec = make_spec(one, "orders", "billing", {})
    for options, kind in ((plain, Watch), (of_settings(mixed), WatchAll)):
        [made] = otel.watched([spec], options)
        assert type(made.middleware[0]) is kind
        room, packed = made.middleware[0].elsewhere()
        assert (room, msgspec.msgpack.decode(packed, type=Options)) == ("framework.otel", options)
        assert type(otel.observe(spec, packed).middleware[0]) is kind
    assert isinstance(published.tracer, Sending)
    assert published.tracer._outer is None, "it is around publishes once"


@pytest.mark.usefixtures("_no_providers")
def test_the_tracer_of_another_is_kept() -> None:
    other: Any = SimpleNamespace()
    published.tracer = other
    otel.watched([make_spec(one, "orders", "billing", {})], Options())
    assert isinstance(published.tracer, Sending)
    assert published.tracer._outer is other
