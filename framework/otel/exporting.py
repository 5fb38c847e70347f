"""Spans and metrics on their way to exporters, in native threads. What cannot be sent is lost, and the log says so once."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, detach, set_value
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricReader, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from framework.otel.regular import Regular

log = logging.getLogger(__name__)

PATIENCE = 2.0
"""Seconds that the end of a process waits for what is still to be sent, all in all."""


class State:
    """Which kinds of data the collector does not take; one line when it begins, one when it is over."""

    def __init__(self) -> None:
        self._down: set[str] = set()

    def attempt(self, kind: str, send: Callable[[], bool]) -> None:
        """``send`` returns whether it has been taken."""
        token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))  # or an export would be traced, and that be exported
        try:
            taken, why = send(), "its exporter says no more"
        except Exception as error:
            taken, why = False, f"{type(error).__name__}: {error}"
        finally:
            detach(token)
        if taken:
            if self._down == {kind}:
                log.info("the collector of OpenTelemetry takes spans and metrics again")
            self._down.discard(kind)
            return
        first = not self._down
        self._down.add(kind)
        if first:
            log.warning(
                "the collector of OpenTelemetry does not take %s (%s); what comes meanwhile is not kept, and the workers go on",
                kind, why,
            )  # fmt: skip


class Spans(SpanProcessor):
    """Collects what has ended, and exports it in batches."""

    def __init__(self, exporter: SpanExporter, state: State) -> None:
        self._exporter = exporter
        self._state = state
        self._size = int(_number("OTEL_BSP_MAX_QUEUE_SIZE", 2048))
        self._batch = int(_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512))
        self._waiting: deque[ReadableSpan] = deque()
        self.thread = Regular(self._export, _number("OTEL_BSP_SCHEDULE_DELAY", 5000) / 1e3)

    def on_end(self, span: ReadableSpan) -> None:
        context = span.context
        if context is None or not context.trace_flags.sampled or len(self._waiting) >= self._size:
            return
        self._waiting.append(span)
        if len(self._waiting) == self._batch:
            self.thread.soon()

    def _export(self) -> None:
        while self._waiting:
            spans: list[ReadableSpan] = []
            with suppress(IndexError):
                while len(spans) < self._batch:
                    spans.append(self._waiting.popleft())
            self._state.attempt("spans", lambda: self._exporter.export(spans) is SpanExportResult.SUCCESS)  # noqa: B023

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self.thread.flush(monotonic() + timeout_millis / 1e3)

    def shutdown(self) -> None:
        self.force_flush(int(PATIENCE * 1e3))


class Reader(MetricReader):
    """Collects and exports all metrics every ``OTEL_METRIC_EXPORT_INTERVAL`` milliseconds."""

    def __init__(self, exporter: MetricExporter, state: State) -> None:
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self._exporter = exporter
        self._state = state
        self.thread = Regular(self.collect, _number("OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1e3)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        self._state.attempt("metrics", lambda: self._exporter.export(metrics_data) is MetricExportResult.SUCCESS)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self.thread.flush(monotonic() + timeout_millis / 1e3)


def _number(variable: str, default: float) -> float:
    """What an OTEL_* variable says, as the SDK reads it: what is no number is the default."""
    try:
        found = float(os.environ.get(variable) or default)
    except ValueError:
        return default
    return found if found > 0 else default
