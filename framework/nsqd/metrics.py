"""/metrics: the counters and gauges of this nsqd in Prometheus' text format, version 0.0.4. Nothing is counted here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from framework.nsqd.broker import Broker
from framework.nsqd.channel import Channel
from framework.nsqd.topic import Topic

CONTENT_TYPE = ("Content-Type", "text/plain; version=0.0.4; charset=utf-8")


class _Metric(NamedTuple):
    name: str
    kind: str
    words: str


_TOPIC: dict[_Metric, Callable[[Topic], int]] = {
    _Metric("depth", "gauge", "Messages that wait in the topic itself."): lambda topic: topic.depth,
    _Metric("unfinished", "gauge", "Messages that count for --topic-quota."): lambda topic: topic.unfinished,
    _Metric("messages_total", "counter", "Messages published since the start."): lambda topic: topic.message_count,
    _Metric("bytes_total", "counter", "Bytes of their bodies."): lambda topic: topic.message_bytes,
    _Metric("refused_total", "counter", "Messages refused by --topic-quota."): lambda topic: topic.refused_count,
    _Metric("expired_total", "counter", "Messages dropped by --topic-max-age."): lambda topic: topic.expired_count,
    _Metric("paused", "gauge", "1 while it is paused."): lambda topic: int(topic.paused),
}
_CHANNEL: dict[_Metric, Callable[[Channel], int]] = {
    _Metric("depth", "gauge", "Messages that could be delivered now."): lambda channel: channel.depth,
    _Metric("in_flight", "gauge", "Messages that clients have."): lambda channel: channel.in_flight_count,
    _Metric("deferred", "gauge", "Messages that are not due yet."): lambda channel: len(channel.deferred),
    _Metric("messages_total", "counter", "Messages that it got since the start."): lambda channel: channel.message_count,
    _Metric("requeued_total", "counter", "Messages given back by clients."): lambda channel: channel.requeue_count,
    _Metric("timed_out_total", "counter", "Messages whose lease ended."): lambda channel: channel.timeout_count,
    _Metric("expired_total", "counter", "Messages dropped by --topic-max-age."): lambda channel: channel.expired_count,
    _Metric("clients", "gauge", "Clients that are subscribed."): lambda channel: len(channel.clients),
    _Metric("paused", "gauge", "1 while it is paused."): lambda channel: int(channel.paused),
}


def text(broker: Broker, clients: int) -> str:
    """``clients``: how many are connected over TCP."""
    topics = [broker.topics[name] for name in sorted(broker.topics)]
    segments, size = broker.log_size()
    lines = [
        *_metric(_Metric("up", "gauge", "1 while all is well, as /ping says."), [("", int(not broker.wrong))]),
        *_metric(_Metric("start_time_seconds", "gauge", "When it started, since 1970."), [("", int(broker.start_time))]),
        *_metric(_Metric("clients", "gauge", "Clients that are connected over TCP."), [("", clients)]),
        *_metric(_Metric("log_segments", "gauge", "Files of the log."), [("", segments)]),
        *_metric(_Metric("log_bytes", "gauge", "Bytes of the log."), [("", size)]),
    ]
    for metric, of_topic in _TOPIC.items():
        values = [(f'{{topic="{one.name}"}}', of_topic(one)) for one in topics]
        lines += _metric(metric._replace(name=f"topic_{metric.name}"), values)
    for metric, of_channel in _CHANNEL.items():
        named = [
            (f'{{topic="{topic.name}",channel="{one.name}"}}', of_channel(one)) for topic in topics for one in _channels(topic)
        ]
        lines += _metric(metric._replace(name=f"channel_{metric.name}"), named)
    return "\n".join([*lines, ""])


def _channels(topic: Topic) -> list[Channel]:
    return [topic.channels[name] for name in sorted(topic.channels)]


def _metric(metric: _Metric, values: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Names of topics and channels need no escapes."""
    name = f"nsqd_{metric.name}"
    yield f"# HELP {name} {metric.words}"
    yield f"# TYPE {name} {metric.kind}"
    yield from (f"{name}{labels} {value}" for labels, value in values)
