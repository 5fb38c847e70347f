"""Spans and metrics of handlers and publishes for OpenTelemetry, by its messaging conventions. Imported only where it is on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec
from opentelemetry import metrics, trace

from framework import published
from framework.handler import HandlerSpec
from framework.otel import providers
from framework.otel.conventions import Metrics
from framework.otel.options import Options, of_settings
from framework.otel.publishing import Sending
from framework.otel.watch import Watch, WatchAll
from framework.version import VERSION

__all__ = ["Options", "observe", "of_settings", "watched"]

_SCOPE = "nsq-workers"


def watched(handlers: Iterable[HandlerSpec], options: Options) -> list[HandlerSpec]:
    """``handlers`` with spans around their calls, outside of all else. Raises BadSetting for an exporter that is not there."""
    providers.make()
    tracer, instruments = trace.get_tracer(_SCOPE, VERSION), Metrics(metrics.get_meter(_SCOPE, VERSION))
    outer = published.tracer
    if not isinstance(outer, Sending):
        published.tracer = Sending(options, tracer, instruments, outer)
    watch = WatchAll if options.all else Watch
    return [replace(spec, middleware=(watch(spec, options, tracer, instruments), *spec.middleware)) for spec in handlers]


def observe(spec: HandlerSpec, options: bytes) -> HandlerSpec:
    """The same, in a slot process."""
    return watched([spec], msgspec.msgpack.decode(options, type=Options))[0]
