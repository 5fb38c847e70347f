"""A worker whose app keeps spans and metrics in memory, by the SDK's own exporter and reader, and what they have at its end."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

TELEMETRY = """
    import atexit, json, os
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader]))

    @atexit.register
    def keep():
        spans = [json.loads(span.to_json()) for span in exporter.get_finished_spans()]
        found = reader.get_metrics_data()
        open(f"kept.{os.getpid()}.json", "w").write(json.dumps([spans, json.loads(found.to_json()) if found else {}]))
"""


class Kept:
    """What all processes of a worker have kept."""

    def __init__(self, folder: Path) -> None:
        self.spans: list[dict[str, Any]] = []
        self.points: dict[str, list[dict[str, Any]]] = {}
        """By the name of the metric."""
        self.units: dict[str, str] = {}
        for file in folder.glob("kept.*.json"):
            spans, metrics = json.loads(file.read_text())
            self.spans += spans
            for resource in metrics.get("resource_metrics", ()):
                for metric in [one for scope in resource["scope_metrics"] for one in scope["metrics"]]:
                    self.units[metric["name"]] = metric["unit"]
                    self.points.setdefault(metric["name"], []).extend(metric["data"]["data_points"])

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]

    def count(self, metric: str, **attributes: str) -> int:
        """Of the points that have these attributes; ``_`` stands for a dot, and an empty one must not be there."""
        wanted = {name.replace("_", "."): value for name, value in attributes.items()}
        return sum(
            point.get("value", point.get("count", 0))
            for point in self.points.get(metric, ())
            if all(point["attributes"].get(name, "") == value for name, value in wanted.items())
        )


def write_shop(folder: Path, shop: str) -> None:
    (folder / "telemetry.py").write_text(textwrap.dedent(TELEMETRY))
    (folder / "shop.py").write_text("import telemetry\n" + textwrap.dedent(shop))
