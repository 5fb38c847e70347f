"""What nsqd and nsqlookupd answer over HTTP, as types. What a server leaves out has a default; what it adds is passed over.

Source: nsqd/http.go, nsqd/stats.go and nsqlookupd/http.go.
"""

from __future__ import annotations

import msgspec

from framework.decoding import prepared
from framework.transports.nsq.urls import join_address


class Producer(msgspec.Struct):
    """An nsqd as nsqlookupd knows it."""

    broadcast_address: str
    tcp_port: int
    http_port: int = 0
    hostname: str = ""
    version: str = ""
    remote_address: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    topics: list[str] = []
    """Of ``nodes`` only, as the next."""
    tombstones: list[bool] = []
    """For each of ``topics`` whether consumers shall leave this node alone, because the topic is being deleted there."""

    @property
    def node(self) -> str:
        """Its TCP address, ``host:port``."""
        return join_address(self.broadcast_address, self.tcp_port)

    @property
    def tombstoned(self) -> bool:
        """Whether every topic that it has is tombstoned."""
        return bool(self.topics) and len(self.tombstones) == len(self.topics) and all(self.tombstones)


@prepared
class Lookup(msgspec.Struct):
    """The nsqds that have a topic."""

    producers: list[Producer] = []
    channels: list[str] = []


@prepared
class Nodes(msgspec.Struct):
    producers: list[Producer] = []


@prepared
class Topics(msgspec.Struct):
    topics: list[str] = []


@prepared
class Channels(msgspec.Struct):
    channels: list[str] = []


@prepared
class Info(msgspec.Struct):
    """What a server says of itself; nsqlookupd says no more than its version. Intervals in nanoseconds."""

    version: str
    broadcast_address: str = ""
    hostname: str = ""
    tcp_port: int = 0
    http_port: int = 0
    start_time: int = 0
    max_heartbeat_interval: int = 0
    max_output_buffer_size: int = 0
    max_output_buffer_timeout: int = 0
    max_deflate_level: int = 0
    topology_region: str = ""
    topology_zone: str = ""


class Latency(msgspec.Struct):
    """From publish to finish; empty unless nsqd has --e2e-processing-latency-percentile."""

    count: int = 0
    percentiles: list[dict[str, float]] | None = None


class TopicCount(msgspec.Struct):
    topic: str
    count: int


class ClientStats(msgspec.Struct):
    """One connection: a consumer of a channel, or one that published."""

    client_id: str = ""
    hostname: str = ""
    version: str = ""
    remote_address: str = ""
    state: int = 0
    """3: subscribed; 4: after CLS."""
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int = 0
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    user_agent: str = ""
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    pub_counts: list[TopicCount] = []
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False


class ChannelStats(msgspec.Struct):
    """Counts since nsqd started. Neither what is in flight nor what is deferred is part of ``depth``."""

    channel_name: str
    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    paused: bool = False
    clients: list[ClientStats] | None = None
    e2e_processing_latency: Latency | None = None
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0


class TopicStats(msgspec.Struct):
    topic_name: str
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    message_bytes: int = 0
    paused: bool = False
    channels: list[ChannelStats] = []
    e2e_processing_latency: Latency | None = None


class Memory(msgspec.Struct):
    """Of nsqd's process, in bytes and microseconds."""

    heap_objects: int = 0
    heap_idle_bytes: int = 0
    heap_in_use_bytes: int = 0
    heap_released_bytes: int = 0
    gc_pause_usec_100: int = 0
    gc_pause_usec_99: int = 0
    gc_pause_usec_95: int = 0
    next_gc_bytes: int = 0
    gc_total_runs: int = 0


@prepared
class Stats(msgspec.Struct):
    version: str = ""
    health: str = ""
    """``OK``, or why a write to disk failed."""
    start_time: int = 0
    topics: list[TopicStats] | None = None
    """None where there are none: nsqd says null."""
    memory: Memory | None = None
    producers: list[ClientStats] | None = None
    """Every connection that has published; None without ``clients``."""
