"""Who exports what: which exporters the variables name, what one tries, how much is kept, and how an answer is read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
import requests
from opentelemetry import metrics, trace
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from requests.adapters import HTTPAdapter

from framework.errors import BadSetting
from framework.otel import exporting, providers, requesting
from framework.otel.exporting import PATIENCE, Reader, Spans, State, Tries, address_of
from tests.otel.test_exporting import span


class Exporter:
    """One that is found by its name."""

    _preferred_temporality = _preferred_aggregation = None

    def __init__(self, **given: Any) -> None:
        self.given = given
        self._endpoint = "https://user:hunter2@collector:4318/v1/traces?token=hush"
        self.exported: list[Any] = []
        self.result: Any = SpanExportResult.SUCCESS

    def export(self, what: Any) -> Any:
        self.exported.append([one.name for one in what] if isinstance(what, Sequence) else what)
        return self.result


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Which exporters were looked for: none but those of OTLP and ``console`` are there."""
    asked: list[tuple[str, str]] = []

    def entry_points(*, group: str, name: str) -> list[Any]:
        asked.append((group, name))
        there = name in ("otlp_proto_http", "otlp_proto_grpc", "console")
        return [SimpleNamespace(load=lambda: Exporter)] if there else []

    monkeypatch.setattr(providers, "entry_points", entry_points)
    monkeypatch.setattr(providers, "_threads", [])
    for name in list(providers.os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    return asked


def test_what_the_variables_name_is_made_and_otlp_where_they_name_nothing(
    found: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    [(exporter, tries)] = providers._exporters("traces", "spans", State())
    assert found == [("opentelemetry_traces_exporter", "otlp_proto_http")]
    assert isinstance(exporter.given["session"], requests.Session)
    assert (tries.where, tries._kind) == ("collector:4318", "spans")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", " console, none,,otlp ")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert [exporter.given for exporter, _ in providers._exporters("metrics", "metrics", State())] == [{}, {}]
    assert found[1:] == [("opentelemetry_metrics_exporter", "console"), ("opentelemetry_metrics_exporter", "otlp_proto_grpc")]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf")
    assert providers._full_name("metrics", "otlp") == "otlp_proto_http"
    assert providers._full_name("traces", "otlp") == "otlp_proto_grpc"
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    assert providers._exporters("metrics", "metrics", State()) == []


@pytest.mark.parametrize(
    ("variable", "own"),
    [("CREDENTIAL_PROVIDER", True), ("TRACES_CREDENTIAL_PROVIDER", True), ("METRICS_CREDENTIAL_PROVIDER", False)],
)
def test_an_app_s_own_session_makes_the_requests_where_it_has_one(
    variable: str, own: bool, found: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{variable}", "shop")
    [(exporter, _)] = providers._exporters("traces", "spans", State())
    assert ("session" in exporter.given) is not own


@pytest.mark.parametrize(
    ("name", "needs"), [("otlp", "opentelemetry-exporter-otlp-proto-http"), ("zipkin", "the package of zipkin")]
)
def test_an_exporter_that_is_not_there_is_named_with_what_it_needs(
    name: str, needs: str, found: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "entry_points", lambda **_: [])
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", name)
    with pytest.raises(
        BadSetting, match=rf"no exporter '{name}' of traces is here: `pip install {needs}`.*\$OTEL_TRACES_EXPORTER"
    ):
        providers._exporters("traces", "spans", State())


@pytest.mark.parametrize("own", [True, False])
def test_providers_are_made_where_the_app_has_none(own: bool, found: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}
    registered: list[Any] = []
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: TracerProvider(shutdown_on_exit=False) if own else None)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: MeterProvider(shutdown_on_exit=False) if own else None)
    monkeypatch.setattr(trace, "set_tracer_provider", lambda one: made.update(tracer=one))
    monkeypatch.setattr(metrics, "set_meter_provider", lambda one: made.update(meter=one))
    monkeypatch.setattr(providers.atexit, "register", registered.append)
    log = logging.getLogger("opentelemetry.exporter")
    level = log.level
    try:
        providers.make()
        assert len(providers._threads) == (0 if own else 2)
        assert registered == ([] if own else [providers.flush])
        assert made.keys() == (set() if own else {"tracer", "meter"})
        assert own or log.level > logging.CRITICAL
    finally:
        log.setLevel(level)


def test_all_threads_begin_and_are_flushed_within_one_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    thread = SimpleNamespace(begin=lambda: told.append("begin"), flush=told.append)
    monkeypatch.setattr(providers, "_threads", [thread, thread])
    monkeypatch.setattr(providers, "monotonic", lambda: 100.0)
    providers.begin()
    providers.flush()
    assert told == ["begin", "begin", 100.0 + PATIENCE, 100.0 + PATIENCE]


# --- what is tried -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [("https://u:p@h:1/x", "h:1"), ("h:4317", "h:4317"), ("u:p@h:1", "h:1"), ("", ""), ("http://[", "")],
)
def test_of_the_address_of_a_collector_no_secret_is_shown(endpoint: str, address: str) -> None:
    assert address_of(SimpleNamespace(_endpoint=endpoint)) == address
    assert address_of(object()) == ""


def test_what_is_not_taken_is_said_once_for_all_kinds_and_once_that_all_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    state = State()
    spans, points = Tries("spans", state), Tries("metrics", state)
    spans.where = "collector:4318"

    def fails() -> bool:
        raise ConnectionError("refused")

    spans.export(lambda: True)
    assert caplog.messages == []
    spans.export(fails)
    points.export(lambda: False)
    spans.export(fails)
    assert [line.split("; ")[0] for line in caplog.messages] == [
        "the collector of OpenTelemetry at collector:4318 does not take spans (ConnectionError: refused)"
    ]
    caplog.clear()
    spans.export(lambda: True)
    assert caplog.messages == [], "metrics are not taken yet"
    points.export(lambda: True)
    points.export(lambda: True)
    assert caplog.messages == ["the collector of OpenTelemetry takes spans and metrics again"]
    caplog.clear()
    points.export(lambda: False)
    assert "OpenTelemetry does not take metrics (its exporter says no more)" in caplog.text
    caplog.clear()
    state.taken("metrics")
    points.export(lambda: (points.tell("HTTP 503"), False)[1])
    assert "(HTTP 503)" in caplog.text


def test_an_export_is_not_traced_itself() -> None:
    seen: list[Any] = []
    Tries("spans", State()).export(lambda: bool(seen.append(get_value(_SUPPRESS_INSTRUMENTATION_KEY))) or True)
    assert (seen, get_value(_SUPPRESS_INSTRUMENTATION_KEY)) == ([True], None)


def test_spans_go_in_batches_and_one_that_is_full_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "3")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1500")
    exporter = Exporter()
    spans = Spans(exporter, Tries("spans", State()))  # type: ignore[arg-type]
    rung: list[int] = []
    monkeypatch.setattr(spans.thread, "soon", lambda: rung.append(len(spans._waiting)))
    for number in range(7):
        spans.on_end(span(f"{number}"))
    assert rung == [3], "a round takes all there is"
    spans._export()
    assert exporter.exported == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert spans.thread._seconds == 1.5
    assert Spans(exporter, Tries("spans", State())).thread._seconds == 1.5  # type: ignore[arg-type]


def test_a_flush_and_an_end_have_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "monotonic", lambda: 100.0)
    until: list[float] = []
    spans = Spans(Exporter(), Tries("spans", State()))  # type: ignore[arg-type]
    reader = Reader(Exporter(), Tries("metrics", State()))  # type: ignore[arg-type]
    for one in (spans, reader):
        monkeypatch.setattr(one.thread, "flush", lambda at: until.append(at) or True)
    assert spans.force_flush()
    spans.force_flush(500)
    spans.shutdown()
    reader.shutdown()
    reader.shutdown(timeout_millis=500)
    assert until == [130.0, 100.5, 100.0 + PATIENCE, 130.0, 100.5]


@pytest.mark.parametrize("result", [SpanExportResult.SUCCESS, SpanExportResult.FAILURE])
def test_what_an_exporter_says_it_did_not_take_is_said(result: SpanExportResult, caplog: pytest.LogCaptureFixture) -> None:
    exporter, state = Exporter(), State()
    exporter.result = result
    spans = Spans(exporter, Tries("spans", state))  # type: ignore[arg-type]
    spans.on_end(span("one"))
    spans._export()
    assert bool(caplog.messages) is (result is SpanExportResult.FAILURE)
    caplog.clear()
    exporter.result = MetricExportResult(result.value)
    reader = Reader(exporter, Tries("metrics", State()))  # type: ignore[arg-type]
    data: Any = SimpleNamespace()
    reader._receive_metrics(data)
    assert exporter.exported[-1] is data
    assert bool(caplog.messages) is (result is SpanExportResult.FAILURE)


@pytest.mark.parametrize(
    ("said", "found"), [("", 60.0), ("250", 0.25), ("soon", 60.0), ("0", 60.0), ("-5", 60.0), ("0.5", 0.0005)]
)
def test_a_variable_that_is_no_number_above_0_is_the_default(said: str, found: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", said)
    reader = Reader(Exporter(), Tries("metrics", State()))  # type: ignore[arg-type]
    assert reader.thread._seconds == found
    reader.shutdown(timeout_millis=10)


# --- requests ----------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[Any]]:
    """What was told, and how requests were made, of which each has the status that was put first."""
    told: list[str] = []
    sent: list[Any] = []

    def send(self: Any, request: Any, **options: Any) -> Any:
        answer = sent.pop(0)
        if isinstance(answer, Exception):
            raise answer
        sent.append(options)
        if answer == "late":
            gevent.sleep(60)
        return SimpleNamespace(status_code=answer, raw="raw")

    monkeypatch.setattr(HTTPAdapter, "send", send)
    monkeypatch.setattr(requesting, "beginning_of", lambda raw: f"begins {raw}".encode())
    return told, sent


@pytest.mark.parametrize(
    ("status", "words", "redirects"),
    [(200, "", False), (299, "", False), (300, "HTTP 300", True), (399, "HTTP 399", True), (400, "HTTP 400", False)],
)
def test_an_answer_is_read_as_far_as_it_says_something_and_a_redirect_is_none(
    status: int, words: str, redirects: bool, asked: tuple[list[str], list[Any]]
) -> None:
    told, sent = asked
    adapter, request = requesting.Bounded(told.append), requests.PreparedRequest()
    sent.append(status)
    if redirects:
        with pytest.raises(requests.TooManyRedirects):
            adapter.send(request, timeout=10)
    else:
        answer = adapter.send(request, timeout=10, verify=True)
        assert answer.raw.read() == b"begins raw"
        assert sent == [{"stream": True, "timeout": 10, "verify": True}]
    assert told == [words]


def test_a_request_that_fails_or_takes_too_long_is_told_with_why(asked: tuple[list[str], list[Any]]) -> None:
    told, sent = asked
    adapter, request = requesting.Bounded(told.append), requests.PreparedRequest()
    sent.append(ConnectionError("refused"))
    with pytest.raises(ConnectionError):
        adapter.send(request, timeout=10)
    sent[:] = ["late"]
    with pytest.raises(requests.ReadTimeout, match="no whole answer in time"):
        adapter.send(request, timeout=0.01)
    assert told == ["ConnectionError", "it has not answered in time"]
    sent[:] = ["late"]
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.01):  # of who asked
        adapter.send(request, timeout=(10, 10))
    assert len(told) == 2


def test_a_session_is_bounded_by_either_scheme() -> None:
    made = requesting.session(print)
    assert {type(made.get_adapter(f"{scheme}://h")) for scheme in ("http", "https")} == {requesting.Bounded}
