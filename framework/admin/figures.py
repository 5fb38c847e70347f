"""The metrics of a worker, in the names of OpenTelemetry's messaging conventions: read from its ledgers, so that they add up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from framework.admin.backlog import Backlog
from framework.engine.consumer import Consumer
from framework.engine.dialler import Dialler
from framework.engine.slots import clock
from framework.engine.supervisor import Supervisor
from framework.engine.times import RUNNING, WAITING

OUTCOMES = ("finished", "requeued", "dead", "lease_lost", "lost")
BY = ("handler", "topic", "channel")
TOPICS = 100
"""Topics that a handler may be seen to publish to; all others are one, ``other``."""


class Figures(Collector):
    """Read from any thread, while the hub may be blocked."""

    def __init__(self, supervisor: Supervisor, backlog: Backlog) -> None:
        self._supervisor = supervisor
        self._backlog = backlog
        self._most: dict[tuple[str, ...], float] = {}

    def collect(self) -> Iterator[Metric]:
        self._backlog.refresh()
        consumers = list(self._supervisor.of_consumers())
        yield from self._messages()
        yield self._sent()
        yield from self._times([one for one, _ in consumers])
        yield from self._state(consumers)
        yield from self._channels([one for one, _ in consumers])

    def _grown(self, *key: str, value: float) -> float:
        """A counter never falls. One of the ledger's may, for a moment: that of a dead letter whose finish is under way."""
        self._most[key] = most = max(value, self._most.get(key, 0.0))
        return most

    def _messages(self) -> Iterator[Metric]:
        """What is in flight is what has not ended: so the sum is right, whenever the counters are read."""
        received = CounterMetricFamily("messaging_client_received_messages", "Messages that brokers have delivered.", labels=BY)
        ended = CounterMetricFamily(
            "messaging_client_consumed_messages", "Deliveries that have ended, by how they ended.", labels=(*BY, "outcome")
        )
        in_flight = GaugeMetricFamily("messaging_client_in_flight_messages", "Messages received and not settled.", labels=BY)
        for name, ledger in self._supervisor.ledgers.items():
            labels = _labels(name)
            counts = [self._grown(name, one, value=getattr(ledger, one)) for one in OUTCOMES]
            came = self._grown(name, "received", value=max(ledger.received, sum(counts)))
            for outcome, count in zip(OUTCOMES, counts, strict=True):
                ended.add_metric([*labels, outcome], count)
            received.add_metric(labels, came)
            in_flight.add_metric(labels, came - sum(counts))
        yield from (received, ended, in_flight)

    def _sent(self) -> Metric:
        family = CounterMetricFamily(
            "messaging_client_sent_messages", "Messages stored by handlers, or for them.", labels=("handler", "topic")
        )
        for name, counts in self._supervisor.published.items():
            ranked = sorted(dict(counts).items())
            for topic, count in ranked[:TOPICS]:
                family.add_metric([name, topic], count)
            if rest := sum(count for _, count in ranked[TOPICS:]):
                family.add_metric([name, "other"], rest)
        return family

    def _times(self, consumers: Iterable[Consumer]) -> Iterator[Metric]:
        running = HistogramMetricFamily("messaging_process_duration_seconds", "How long calls of handlers take.", labels=BY)
        waiting = HistogramMetricFamily(
            "messaging_process_wait_seconds", "From publish to the first call, sampled: see docs/admin.md.", labels=BY
        )
        for one in consumers:
            labels, times = _labels(one.spec.name), one.times
            slow = list(times.slow_calls)
            calls = self._grown(one.spec.name, "calls", value=max(one.calls_ended, sum(slow)))
            if not calls:  # most of a page would be empty histograms where there are a thousand handlers
                continue
            fast = int(calls) - sum(slow)
            running.add_metric(labels, _buckets(RUNNING, [fast, *slow[1:]]), times.busy)
            waiting.add_metric(labels, _buckets(WAITING, list(times.waits)), times.waited)
        yield from (running, waiting)

    def _state(self, consumers: Iterable[tuple[Consumer, list[Dialler]]]) -> Iterator[Metric]:
        def gauge(name: str, text: str) -> Any:
            return GaugeMetricFamily(f"messaging_{name}", text, labels=BY)

        slots = gauge("process_slots", "Calls that can run at once.")
        busy = gauge("process_running_calls", "Calls that run.")
        limit = gauge("client_max_in_flight_messages", "Messages that may be in flight.")
        paused = gauge("client_paused", "1 while it asks for no messages: an operator's pause, or the breaker's.")
        up = gauge("client_connections", "Connections to nodes.")
        wanted = gauge("client_connections_wanted", "Nodes that are known to have the topic.")
        stalled = gauge("process_stalled_seconds", "Since a call ended, while messages wait or run; else 0.")
        for one, diallers in consumers:
            labels, flow = _labels(one.spec.name), one.flow
            slots.add_metric(labels, one.spec.concurrency)
            busy.add_metric(labels, len(one.running.calls()))
            limit.add_metric(labels, flow.max_in_flight)
            paused.add_metric(labels, flow.paused or flow.breaker.pausing)
            up.add_metric(labels, len(one.accounts))
            wanted.add_metric(labels, sum(dialler.wanted for dialler in diallers))
            stalled.add_metric(labels, _stalled(one))
        yield from (slots, busy, limit, paused, up, wanted, stalled)
        yield GaugeMetricFamily(
            "messaging_hub_blocked_seconds", "Since the hub turned; over 0.2 s something blocks it.", self._supervisor.blocked
        )

    def _channels(self, consumers: Iterable[Consumer]) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "messaging_channel_backlog_messages", "Messages that a node keeps for a channel, in flight ones included.",
            labels=("topic", "channel", "node"),
        )  # fmt: skip
        age = GaugeMetricFamily(
            "messaging_channel_oldest_age_seconds", "At most so long the oldest message has waited.", labels=("topic", "channel")
        )
        for one in consumers:
            channel = one.spec.topic, one.spec.channel
            if channel in (counts := self._backlog.counts):
                for node, count in counts[channel].items():
                    depth.add_metric([*channel, node], count)
                age.add_metric(channel, self._backlog.age_at_most(channel, one.times.started))
        yield from (depth, age)


def _stalled(consumer: Consumer) -> float:
    """Seconds since a call ended, or the oldest one that runs began, or the oldest message that waits came."""
    began = [call.started for call in consumer.running.calls()]
    began = began or [at for connection in list(consumer.accounts) for at in list(connection.in_flight.values())]
    return max(0.0, clock() - max(consumer.times.ended_at, min(began))) if began else 0.0


def _labels(name: str) -> list[str]:
    return [name, *name.split("/")]


def _buckets(bounds: tuple[float, ...], counts: list[int]) -> list[tuple[str, float]]:
    """Each bound with how many are within it, as the exposition format has them."""
    names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(map(float, counts)), strict=True))
