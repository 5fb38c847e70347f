"""Who takes spans and metrics: the app's own providers, else ones that are made as the variables OTEL_* say."""

from __future__ import annotations

import atexit
import logging
import os
from importlib.metadata import entry_points
from time import monotonic
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from framework.errors import BadSetting
from framework.otel.exporting import PATIENCE, Reader, Spans, State, Tries, address_of
from framework.otel.regular import Regular

_threads: list[Regular] = []


def make() -> None:
    """Set the providers that the app has not set, once. Raises BadSetting for an exporter that is not there."""
    state = State()
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        _make_tracer_provider(state)
    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        _make_meter_provider(state)
    if _threads:
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL + 1)  # it has a line for each try that fails
        atexit.register(flush)


def begin() -> None:
    """Start the threads that export, where any do, in the process that makes the calls."""
    for thread in _threads:
        thread.begin()


def flush() -> None:
    """Send what waits, for as long as the end of a process waits for it."""
    until = monotonic() + PATIENCE
    for thread in _threads:
        thread.flush(until)


def _make_tracer_provider(state: State) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    for exporter, tries in _exporters("traces", "spans", state):
        processor = Spans(exporter, tries)
        provider.add_span_processor(processor)
        _threads.append(processor.thread)
    trace.set_tracer_provider(provider)


def _make_meter_provider(state: State) -> None:
    readers = [Reader(exporter, tries) for exporter, tries in _exporters("metrics", "metrics", state)]
    metrics.set_meter_provider(MeterProvider(readers, shutdown_on_exit=False))
    _threads.extend(reader.thread for reader in readers)


def _exporters(signal: str, kind: str, state: State) -> list[tuple[Any, Tries]]:
    """Those that ``OTEL_TRACES_EXPORTER`` or ``OTEL_METRICS_EXPORTER`` names: otlp, if nothing is said; none."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    names = [name.strip() for name in (os.environ.get(variable) or "otlp").split(",")]
    return [_exporter(signal, variable, name, Tries(kind, state)) for name in names if name and name != "none"]


def _exporter(signal: str, variable: str, name: str, tries: Tries) -> tuple[Any, Tries]:
    full = _full_name(signal, name)
    found = entry_points(group=f"opentelemetry_{signal}_exporter", name=full)
    if not found:
        needs = "opentelemetry-exporter-otlp-proto-http" if name == "otlp" else f"the package of {name}"
        raise BadSetting(
            f"otel: no exporter {name!r} of {signal} is here: `pip install {needs}`, or name another in ${variable}, or none"
        )
    make = next(iter(found)).load()
    if full == "otlp_proto_http" and not _has_credentials(signal):
        from framework.otel.requesting import session  # noqa: PLC0415  # what it needs comes with this exporter

        exporter = make(session=session(tries.tell))
    else:
        exporter = make()
    tries.where = address_of(exporter)
    return exporter, tries


def _has_credentials(signal: str) -> bool:
    """Whether an app's own session makes the requests."""
    names = ("", f"{signal.upper()}_")
    return any(os.environ.get(f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{name}CREDENTIAL_PROVIDER") for name in names)


def _full_name(signal: str, name: str) -> str:
    if name != "otlp":
        return name
    said = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    return "otlp_proto_grpc" if said == "grpc" else "otlp_proto_http"
