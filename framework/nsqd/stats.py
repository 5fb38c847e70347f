"""/stats and /info: what nsqd's own JSON and text say, from this server's counters."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Iterable
from typing import Any

from framework.nsqd import tls
from framework.nsqd.broker import Broker
from framework.nsqd.channel import Channel
from framework.nsqd.daemon import version_line
from framework.nsqd.options import VERSION, Options
from framework.nsqd.protocol import Client
from framework.nsqd.topic import Topic

_LATENCY: dict[str, Any] = {"count": 0, "percentiles": None}


def health(broker: Broker) -> str:
    return f"NOK - {wrong}" if (wrong := broker.wrong) else "OK"


def info(broker: Broker, about: dict[str, Any]) -> dict[str, Any]:
    """The body of /info; intervals in ns, as nsqd gives them. ``about`` is where clients find this nsqd."""
    options: Options = broker.options
    return {
        "version": VERSION,
        **about,
        "start_time": int(broker.start_time),
        "max_heartbeat_interval": round(options.max_heartbeat_interval * 1e9),
        "max_output_buffer_size": options.max_output_buffer_size,
        "max_output_buffer_timeout": round(options.max_output_buffer_timeout * 1e9),
        "max_deflate_level": options.max_deflate_level,
    }


def stats(
    broker: Broker,
    clients: Iterable[Client],
    topic: str = "",
    channel: str = "",
    *,
    with_clients: bool = True,
    memory: bool = True,
) -> dict[str, Any]:
    """The body of /stats?format=json; ``topic`` and ``channel`` choose one, "" all."""
    unknown = bool(topic) and topic not in broker.topics
    producers = [_client(one, topic) for one in clients if one.publishing.counts] if with_clients and not unknown else []
    body: dict[str, Any] = {
        "version": VERSION,
        "health": health(broker),
        "start_time": int(broker.start_time),
        "topics": None if unknown else [_topic(one, channel, topic, with_clients) for one in _chosen(broker, topic, channel)],
    }
    if memory:
        body["memory"] = _memory()
    return body | {"producers": producers or None}


def _chosen(broker: Broker, topic: str, channel: str) -> list[Topic]:
    topics = [broker.topics[topic]] if topic else [broker.topics[name] for name in sorted(broker.topics)]
    return [one for one in topics if not channel or channel in one.channels]


def _topic(topic: Topic, channel: str, asked: str, with_clients: bool) -> dict[str, Any]:
    names = [channel] if channel else sorted(topic.channels)
    return {
        "topic_name": topic.name,
        "channels": [_channel(topic.channels[name], asked, with_clients) for name in names],
        "depth": topic.depth,
        "backend_depth": 0 if topic.ephemeral else topic.depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _LATENCY,
    }


def _channel(channel: Channel, asked: str, with_clients: bool) -> dict[str, Any]:
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": max(0, channel.depth - channel.backlog.loaded - len(channel.retries.ready)),
        "in_flight_count": channel.in_flight_count,
        "deferred_count": len(channel.deferred),
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.clients),
        "clients": [_client(one, asked) for one in channel.clients if isinstance(one, Client)] if with_clients else None,
        "paused": channel.paused,
        "e2e_processing_latency": _LATENCY,
    }


def _client(client: Client, topic: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "client_id": client.wishes.client_id,
        "hostname": client.wishes.hostname,
        "version": "V2",
        "remote_address": client.address,
        "state": client.state,
        "ready_count": client.ready,
        "in_flight_count": len(client.leases.messages),
        "message_count": client.message_count,
        "finish_count": client.finish_count,
        "requeue_count": client.requeue_count,
        "connect_ts": int(client.connected),
        "sample_rate": client.granted.sample_rate,
        "deflate": client.granted.deflate,
        "snappy": client.granted.snappy,
        "user_agent": client.wishes.user_agent,
    }
    published = [{"topic": name, "count": count} for name, count in client.publishing.counts.items() if topic in ("", name)]
    if client.permission.state is not None:
        body |= client.permission.state.stats()
    if published:
        body["pub_counts"] = published[:1]  # nsqd too gives the first only
    return body | tls.stats(client.connection.tls)


def _memory() -> dict[str, int]:
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    collections = sum(generation["collections"] for generation in gc.get_stats())
    return {
        "heap_objects": 0,
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": resident,
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": collections,
    }


def text(broker: Broker, body: dict[str, Any]) -> str:
    """/stats without a format: for people."""
    lines = [
        version_line("nsqd"),
        f"start_time {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(broker.start_time))}",
        f"uptime {time.time() - broker.start_time:.3f}s",
        "",
        f"Health: {body['health']}",
        "",
        "Topics:" if body["topics"] else "Topics: None",
    ]
    for topic in body["topics"] or ():
        lines += _topic_lines(topic)
    lines += ["", "Producers:" if body["producers"] else "Producers: None"]
    lines += [f"   {_client_line(client)}" for client in body["producers"] or ()]
    return "\n".join(lines) + "\n"


def _topic_lines(topic: dict[str, Any]) -> Iterable[str]:
    yield (
        f"{'*P' if topic['paused'] else '  '} [{topic['topic_name']:<15}] depth: {topic['depth']:<5} "
        f"be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8} e2e%: "
    )
    for channel in topic["channels"]:
        yield (
            f"   {'*P' if channel['paused'] else '  '} [{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
            f"be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4} def: {channel['deferred_count']:<4} "
            f"re-q: {channel['requeue_count']:<5} timeout: {channel['timeout_count']:<5} "
            f"msgs: {channel['message_count']:<8} e2e%: "
        )
        yield from (f"        {_client_line(client)}" for client in channel["clients"] or ())


def _client_line(client: dict[str, Any]) -> str:
    port = client["remote_address"].rpartition(":")[2]
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    return (
        f"[V2 {name:<21}] state: {client['state']} inflt: {client['in_flight_count']:<4} rdy: {client['ready_count']:<4} "
        f"fin: {client['finish_count']:<8} re-q: {client['requeue_count']:<8} msgs: {client['message_count']:<8}"
    )
