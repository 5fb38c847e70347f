"""The metrics of a worker, in the names of OpenTelemetry's messaging conventions: made of a snapshot, so that they add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from framework.admin.backlog import Backlog
from framework.admin.exposition import bounds, head, histogram, labels, sample
from framework.admin.fresh import Breathe
from framework.admin.snapshot import Snapshot, at_once
from framework.engine.ledger import OUTCOMES
from framework.engine.times import RUNNING, WAITING

BY = ("handler", "topic", "channel")
TOPICS = 100
"""Topics that a handler may be seen to publish to; all others are one, ``other``."""
_RUNNING, _WAITING = bounds(RUNNING), bounds(WAITING)
Row = dict[str, Any]


class Figures:
    """Of what ``latest()`` returns, as text. Written by one at a time."""

    def __init__(self, latest: Callable[[], Snapshot], backlog: Backlog) -> None:
        self._latest = latest
        self._backlog = backlog
        self._most: dict[tuple[str, ...], float] = {}
        self._labels: dict[str, str] = {}

    def text(self, breathe: Breathe = at_once) -> str:
        """All of it. ``breathe`` is called after the lines of a handler, again and again."""
        snapshot = self._latest()
        handlers = snapshot["handlers"]
        self._backlog.refresh((row["topic"], row["channel"]) for row in handlers)
        found = []
        for lines in self._lines(handlers, max((one["blocked"] for one in snapshot["processes"]), default=0.0)):
            found.append(lines)
            breathe()
        return "".join(found)

    def _lines(self, handlers: Sequence[Row], blocked: float) -> Iterator[str]:
        yield from self._messages(handlers)
        yield from self._sent(handlers)
        yield from self._times(handlers)
        yield from self._state(handlers)
        yield head("messaging_hub_blocked_seconds", "gauge", "Since the hub turned; over 0.2 s something blocks it.")
        yield sample("messaging_hub_blocked_seconds", "", blocked)
        yield from self._channels(handlers)

    def _grown(self, *key: str, value: float) -> float:
        """A counter never falls. One of the ledger's may, for a moment: that of a dead letter whose finish is under way."""
        self._most[key] = most = max(value, self._most.get(key, 0))
        return most

    def _of(self, row: Row) -> str:
        """Its labels."""
        name = row["handler"]
        if (known := self._labels.get(name)) is None:
            known = self._labels[name] = labels(BY, (name, row["topic"], row["channel"]))
        return known

    def _messages(self, handlers: Sequence[Row]) -> Iterator[str]:
        """What is in flight is what has not ended: so the sum is right, whenever the counters are read."""
        received, in_flight = [], []
        name = "messaging_client_consumed_messages_total"
        yield head(name, "counter", "Deliveries that have ended, by how they ended.")
        for row in handlers:
            handler, of = row["handler"], self._of(row)
            counts = [self._grown(handler, one, value=row["counts"][one]) for one in OUTCOMES]
            came = self._grown(handler, "received", value=max(row["counts"]["received"], sum(counts)))
            ended = [sample(name, f'{of},outcome="{one}"', count) for one, count in zip(OUTCOMES, counts, strict=True)]
            received.append(sample("messaging_client_received_messages_total", of, came))
            in_flight.append(sample("messaging_client_in_flight_messages", of, came - sum(counts)))
            yield "".join(ended)
        yield head("messaging_client_received_messages_total", "counter", "Messages that brokers have delivered.")
        yield from received
        yield head("messaging_client_in_flight_messages", "gauge", "Messages received and not settled.")
        yield from in_flight

    def _sent(self, handlers: Sequence[Row]) -> Iterator[str]:
        name = "messaging_client_sent_messages_total"
        yield head(name, "counter", "Messages stored by handlers, or for them.")
        for row in handlers:
            ranked = sorted(row["published"].items())
            some = [*ranked[:TOPICS], *([("other", sum(count for _, count in ranked[TOPICS:]))] if ranked[TOPICS:] else ())]
            yield "".join(sample(name, labels(("handler", "topic"), (row["handler"], topic)), count) for topic, count in some)

    def _times(self, handlers: Sequence[Row]) -> Iterator[str]:
        """Of handlers that have made calls: most of a page would be empty histograms where there are a thousand."""
        some = [(row, calls) for row in handlers if (calls := self._grown(row["handler"], "calls", value=row["calls"]))]
        yield head("messaging_process_duration_seconds", "histogram", "How long calls of handlers take.")
        for row, calls in some:
            slow = row["slow"]
            counts = [int(calls) - sum(slow), *slow[1:]]
            yield histogram("messaging_process_duration_seconds", self._of(row), _RUNNING, counts, row["busy"])
        yield head("messaging_process_wait_seconds", "histogram", "From publish to the first call, sampled: see docs/admin.md.")
        for row, _ in some:
            yield histogram("messaging_process_wait_seconds", self._of(row), _WAITING, row["waits"], row["waited"])

    def _state(self, handlers: Sequence[Row]) -> Iterator[str]:
        for name, words, value in _STATE:
            yield head(f"messaging_{name}", "gauge", words)
            for row in handlers:
                yield sample(f"messaging_{name}", self._of(row), value(row))

    def _channels(self, handlers: Sequence[Row]) -> Iterator[str]:
        ages, counts = [], self._backlog.counts
        name = "messaging_channel_backlog_messages"
        yield head(name, "gauge", "Messages that a node keeps for a channel, in flight ones included.")
        for row in handlers:
            channel = row["topic"], row["channel"]
            if channel not in counts:
                continue
            of = labels(("topic", "channel"), channel)
            nodes = counts[channel].items()
            ages.append(sample("messaging_channel_oldest_age_seconds", of, self._backlog.age_at_most(channel, row["started"])))
            yield "".join(sample(name, f"{of},{labels(('node',), (node,))}", count) for node, count in nodes)
        yield head("messaging_channel_oldest_age_seconds", "gauge", "At most so long the oldest message has waited.")
        yield from ages


def _asks_none(row: Row) -> int:
    pause = row["pause"]
    return int(pause is not None and not pause.get("trying") and pause["processes"] >= row["processes"])


_STATE: tuple[tuple[str, str, Callable[[Row], float]], ...] = (
    ("process_slots", "Calls that can run at once.", lambda row: row["concurrency"]),
    ("process_running_calls", "Calls that run.", lambda row: row["running"]),
    ("client_max_in_flight_messages", "Messages that may be in flight.", lambda row: row["max_in_flight"]),
    ("client_paused", "1 while it asks for no messages: an operator's pause, or the breaker's.", _asks_none),
    ("client_connections", "Connections to nodes.", lambda row: row["connected"]),
    ("client_connections_wanted", "Nodes that are known to have the topic.", lambda row: row["wanted"]),
    ("process_stalled_seconds", "Since a call ended, while messages wait or run; else 0.", lambda row: row["stalled"]),
)
