"""Spans and metrics on their way to exporters, in native threads. What cannot be sent is lost, and the log says so once."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

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

    def trouble(self, kind: str, where: str, why: str) -> None:
        """``kind`` is not taken at ``where``, be it that the exporter still tries."""
        first = not self._down
        self._down.add(kind)
        if first:
            log.warning(
                "the collector of OpenTelemetry%s does not take %s (%s); what comes meanwhile is not kept, and the workers go on",
                f" at {where}" if where else "", kind, why,
            )  # fmt: skip

    def taken(self, kind: str) -> None:
        if self._down == {kind}:
            log.info("the collector of OpenTelemetry takes spans and metrics again")
        self._down.discard(kind)


class Tries:
    """What one exporter tries: ``kind`` is spans or metrics. It repeats a request for ten seconds in silence."""

    def __init__(self, kind: str, state: State) -> None:
        self.where = ""
        self._kind = kind
        self._state = state
        self._why = ""
        self._failed = 0

    def tell(self, why: str) -> None:
        """Of a request: why it has failed; empty where it has not."""
        self._why = why
        self._failed = self._failed + 1 if why else 0
        if self._failed > 1:  # the first may be of a connection that has gone stale
            self._state.trouble(self._kind, self.where, why)

    def export(self, send: Callable[[], bool]) -> None:
        """``send`` returns whether it has been taken."""
        token = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))  # or an export would be traced, and that be exported
        self._why = ""
        try:
            taken, why = send(), self._why or "its exporter says no more"
        except Exception as error:
            taken, why = False, f"{type(error).__name__}: {error}"
        finally:
            detach(token)
        if taken:
            self._state.taken(self._kind)
        else:
            self._state.trouble(self._kind, self.where, why)


def address_of(exporter: object) -> str:
    """``host:port`` of its collector, where it says so; nothing else of a URL, which may have secrets in any part."""
    with suppress(Exception):
        endpoint = str(getattr(exporter, "_endpoint", ""))
        return urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").netloc.rpartition("@")[2]
    return ""


class Spans(SpanProcessor):
    """Collects what has ended, and exports it in batches."""

    def __init__(self, exporter: SpanExporter, tries: Tries) -> None:
        self._exporter = exporter
        self._tries = tries
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
            self._tries.export(lambda: self._exporter.export(spans) is SpanExportResult.SUCCESS)  # noqa: B023

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self.thread.flush(monotonic() + timeout_millis / 1e3)

    def shutdown(self) -> None:
        self.thread.flush(monotonic() + PATIENCE)


class Reader(MetricReader):
    """Collects and exports all metrics every ``OTEL_METRIC_EXPORT_INTERVAL`` milliseconds."""

    def __init__(self, exporter: MetricExporter, tries: Tries) -> None:
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self._exporter = exporter
        self._tries = tries
        self.thread = Regular(self.collect, _number("OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1e3)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        self._tries.export(lambda: self._exporter.export(metrics_data) is MetricExportResult.SUCCESS)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self.thread.flush(monotonic() + timeout_millis / 1e3)


def _number(variable: str, default: float) -> float:
    """What an OTEL_* variable says, as the SDK reads it: what is no number is the default."""
    try:
        found = float(os.environ.get(variable) or default)
    except ValueError:
        return default
    return found if found > 0 else default
