"""What is kept until it is exported, what the log says of a collector that takes nothing, and how long an end waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

from framework.otel.exporting import Reader, Spans, State, Tries


class Exporter(SpanExporter):
    """Takes all there is when it may."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.names: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.go.wait(60)
        self.names += [span.name for span in spans]
        return SpanExportResult.SUCCESS


def span(name: str, *, sampled: bool = True) -> ReadableSpan:
    return ReadableSpan(name, SpanContext(1, 1, False, TraceFlags(int(sampled))))


def test_of_a_collector_it_is_said_when_it_refuses_twice_in_a_row(caplog: pytest.LogCaptureFixture) -> None:
    """The first request may be of a connection that has gone stale."""
    caplog.set_level(logging.INFO)
    tries = Tries("spans", State())
    for why in ("cut", "", "cut", ""):
        tries.tell(why)
    assert caplog.messages == []
    tries.tell("cut")
    tries.tell("refused")
    tries.tell("refused")
    assert [line.count("does not take spans (refused)") for line in caplog.messages] == [1]


def test_what_is_sampled_is_kept_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "3")
    exporter = Exporter()
    spans = Spans(exporter, Tries("spans", State()))
    for number in range(3):
        spans.on_end(span(f"no {number}", sampled=False))
        spans.on_end(span(f"yes {number}"))
    spans.on_end(span("too many"))
    exporter.go.set()
    spans.thread.begin()
    assert spans.force_flush(60_000)
    assert exporter.names == ["yes 0", "yes 1", "yes 2"]
    spans.on_end(span("room again"))
    assert spans.force_flush(60_000)
    assert exporter.names[3:] == ["room again"]


def test_an_end_waits_no_longer_than_it_may() -> None:
    go = threading.Event()
    exporter: Any = SimpleNamespace(_preferred_temporality=None, _preferred_aggregation=None)
    reader = Reader(exporter, Tries("metrics", State()))
    reader.thread._work = lambda: go.wait(60)
    reader.thread.begin()
    alarm = threading.Timer(20.0, go.set)
    alarm.start()
    began = time.monotonic()
    reader.shutdown(timeout_millis=50)
    alarm.cancel()
    assert not go.is_set()
    assert time.monotonic() - began >= 0.05
    go.set()
