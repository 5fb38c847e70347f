"""The metrics of a worker, in the names of OpenTelemetry's messaging conventions: made of a snapshot, so that they add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from framework.admin.backlog import Backlog
from framework.admin.snapshot import Snapshot
from framework.engine.ledger import OUTCOMES
from framework.engine.times import RUNNING, WAITING

BY = ("handler", "topic", "channel")
TOPICS = 100
"""Topics that a handler may be seen to publish to; all others are one, ``other``."""
Row = dict[str, Any]


class Figures(Collector):
    """Of what ``latest()`` returns."""

    def __init__(self, latest: Callable[[], Snapshot], backlog: Backlog) -> None:
        self._latest = latest
        self._backlog = backlog
        self._most: dict[tuple[str, ...], float] = {}

    def describe(self) -> Iterator[Metric]:
        """Nothing: the registry would collect to find out, before there is anything."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        snapshot = self._latest()
        handlers = snapshot["handlers"]
        self._backlog.refresh((row["topic"], row["channel"]) for row in handlers)
        yield from self._messages(handlers)
        yield self._sent(handlers)
        yield from self._times(handlers)
        yield from _state(handlers)
        yield GaugeMetricFamily(
            "messaging_hub_blocked_seconds", "Since the hub turned; over 0.2 s something blocks it.",
            max((one["blocked"] for one in snapshot["processes"]), default=0.0),
        )  # fmt: skip
        yield from self._channels(handlers)

    def _grown(self, *key: str, value: float) -> float:
        """A counter never falls. One of the ledger's may, for a moment: that of a dead letter whose finish is under way."""
        self._most[key] = most = max(value, self._most.get(key, 0.0))
        return most

    def _messages(self, handlers: Sequence[Row]) -> Iterator[Metric]:
        """What is in flight is what has not ended: so the sum is right, whenever the counters are read."""
        received = CounterMetricFamily("messaging_client_received_messages", "Messages that brokers have delivered.", labels=BY)
        ended = CounterMetricFamily(
            "messaging_client_consumed_messages", "Deliveries that have ended, by how they ended.", labels=(*BY, "outcome")
        )
        in_flight = GaugeMetricFamily("messaging_client_in_flight_messages", "Messages received and not settled.", labels=BY)
        for row in handlers:
            name, labels = row["handler"], _labels(row)
            counts = [self._grown(name, one, value=row["counts"][one]) for one in OUTCOMES]
            came = self._grown(name, "received", value=max(row["counts"]["received"], sum(counts)))
            for outcome, count in zip(OUTCOMES, counts, strict=True):
                ended.add_metric([*labels, outcome], count)
            received.add_metric(labels, came)
            in_flight.add_metric(labels, came - sum(counts))
        yield from (received, ended, in_flight)

    def _sent(self, handlers: Sequence[Row]) -> Metric:
        family = CounterMetricFamily(
            "messaging_client_sent_messages", "Messages stored by handlers, or for them.", labels=("handler", "topic")
        )
        for row in handlers:
            ranked = sorted(row["published"].items())
            for topic, count in ranked[:TOPICS]:
                family.add_metric([row["handler"], topic], count)
            if rest := sum(count for _, count in ranked[TOPICS:]):
                family.add_metric([row["handler"], "other"], rest)
        return family

    def _times(self, handlers: Sequence[Row]) -> Iterator[Metric]:
        running = HistogramMetricFamily("messaging_process_duration_seconds", "How long calls of handlers take.", labels=BY)
        waiting = HistogramMetricFamily(
            "messaging_process_wait_seconds", "From publish to the first call, sampled: see docs/admin.md.", labels=BY
        )
        for row in handlers:
            labels, slow = _labels(row), row["slow"]
            calls = self._grown(row["handler"], "calls", value=row["calls"])
            if not calls:  # most of a page would be empty histograms where there are a thousand handlers
                continue
            running.add_metric(labels, _buckets(RUNNING, [int(calls) - sum(slow), *slow[1:]]), row["busy"])
            waiting.add_metric(labels, _buckets(WAITING, row["waits"]), row["waited"])
        yield from (running, waiting)

    def _channels(self, handlers: Sequence[Row]) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "messaging_channel_backlog_messages", "Messages that a node keeps for a channel, in flight ones included.",
            labels=("topic", "channel", "node"),
        )  # fmt: skip
        age = GaugeMetricFamily(
            "messaging_channel_oldest_age_seconds", "At most so long the oldest message has waited.", labels=("topic", "channel")
        )
        counts = self._backlog.counts
        for row in handlers:
            channel = row["topic"], row["channel"]
            if channel in counts:
                for node, count in counts[channel].items():
                    depth.add_metric([*channel, node], count)
                age.add_metric(channel, self._backlog.age_at_most(channel, row["started"]))
        yield from (depth, age)


def _state(handlers: Sequence[Row]) -> Iterator[Metric]:
    def gauge(name: str, text: str, column: Callable[[Row], float]) -> Metric:
        family = GaugeMetricFamily(f"messaging_{name}", text, labels=BY)
        for row in handlers:
            family.add_metric(_labels(row), column(row))
        return family

    yield gauge("process_slots", "Calls that can run at once.", lambda row: row["concurrency"])
    yield gauge("process_running_calls", "Calls that run.", lambda row: row["running"])
    yield gauge("client_max_in_flight_messages", "Messages that may be in flight.", lambda row: row["max_in_flight"])
    yield gauge("client_paused", "1 while it asks for no messages: an operator's pause, or the breaker's.", _asks_none)
    yield gauge("client_connections", "Connections to nodes.", lambda row: row["connected"])
    yield gauge("client_connections_wanted", "Nodes that are known to have the topic.", lambda row: row["wanted"])
    yield gauge("process_stalled_seconds", "Since a call ended, while messages wait or run; else 0.", lambda row: row["stalled"])


def _asks_none(row: Row) -> bool:
    pause = row["pause"]
    return pause is not None and not pause.get("trying") and pause["processes"] >= row["processes"]


def _labels(row: Row) -> list[str]:
    return [row["handler"], row["topic"], row["channel"]]


def _buckets(bounds: tuple[float, ...], counts: list[int]) -> list[tuple[str, float]]:
    """Each bound with how many are within it, as the exposition format has them."""
    names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(map(float, counts)), strict=True))
