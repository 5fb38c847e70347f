"""nsqd's own command line flags, so that tools made for nsqd start this one."""

from __future__ import annotations

import hashlib
import socket
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framework.nsqd import goflags, golang
from framework.nsqd.goflags import BadFlag, CommonOptions, Flag, boolean

VERSION = "1.3.0"
"""The NSQ whose behaviour these daemons have; clients read it from IDENTIFY and /info."""


def _node_id() -> int:
    return zlib.crc32(hashlib.md5(socket.gethostname().encode(), usedforsecurity=False).digest()) % 1024


@dataclass(kw_only=True)
class Options(CommonOptions):
    """Every flag that has an effect here. Times in seconds, sizes in bytes."""

    tcp_address: str = "127.0.0.1:4150"
    http_address: str = "127.0.0.1:4151"
    broadcast_address: str = field(default_factory=socket.gethostname)
    broadcast_tcp_port: int = 0
    """What nsqlookupd is told; 0: the port that is listened on."""
    broadcast_http_port: int = 0
    lookupd_tcp_addresses: list[str] = field(default_factory=list)
    http_client_request_timeout: float = 5.0
    data_path: Path = Path()
    log_prefix: str = "[nsqd] "
    node_id: int = field(default_factory=_node_id)
    mem_queue_size: int = 10000
    msg_timeout: float = 60.0
    max_msg_timeout: float = 900.0
    max_msg_size: int = 1 << 20
    max_body_size: int = 5 << 20
    max_req_timeout: float = 3600.0
    max_heartbeat_interval: float = 60.0
    max_rdy_count: int = 2500
    max_output_buffer_size: int = 64 << 10
    max_output_buffer_timeout: float = 30.0
    min_output_buffer_timeout: float = 0.025
    output_buffer_timeout: float = 0.25
    max_channel_consumers: int = 0
    max_deflate_level: int = 6
    client_timeout: float = 60.0
    """Twice the default heartbeat interval; nsqd has no flag for it."""
    while_used: bool = False


def _ours(parse: Callable[[str], Any], usage: str, attribute: str) -> Flag:
    return Flag(parse, attribute, usage)


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("it is not <host>:<port>")
    return text


def _closed(text: str) -> str:
    raise ValueError("it is not supported, and ignoring it would let in whom it keeps out: leave it away")


FLAGS: dict[str, Flag] = goflags.COMMON | {
    "while-used": _ours(boolean, "stop when no worker uses the data path any more (not in nsqd)", "while_used"),
    "tcp-address": _ours(str, "<addr>:<port> to listen on for TCP clients", "tcp_address"),
    "http-address": _ours(str, "<addr>:<port> to listen on for HTTP clients", "http_address"),
    "broadcast-address": _ours(str, "address that nsqlookupd and /info give", "broadcast_address"),
    "broadcast-tcp-port": _ours(int, "TCP port that nsqlookupd and /info give", "broadcast_tcp_port"),
    "broadcast-http-port": _ours(int, "HTTP port that nsqlookupd and /info give", "broadcast_http_port"),
    "lookupd-tcp-address": Flag(
        _address, "lookupd_tcp_addresses", "<addr>:<port> of an nsqlookupd to register with (may be repeated)", repeated=True
    ),
    "http-client-request-timeout": _ours(
        golang.duration, "how long nsqlookupd may take to answer over HTTP", "http_client_request_timeout"
    ),
    "data-path": _ours(Path, "path to store messages", "data_path"),
    "node-id": _ours(int, "number of this node in [0,1024)", "node_id"),
    "mem-queue-size": _ours(int, "messages that an #ephemeral topic or channel holds", "mem_queue_size"),
    "msg-timeout": _ours(golang.duration, "default duration to wait before requeueing a message", "msg_timeout"),
    "max-msg-timeout": _ours(golang.duration, "maximum duration that touching can reach", "max_msg_timeout"),
    "max-msg-size": _ours(int, "maximum size of a single message in bytes", "max_msg_size"),
    "max-body-size": _ours(int, "maximum size of a single command body in bytes", "max_body_size"),
    "max-req-timeout": _ours(golang.duration, "maximum delay of a requeue or a deferred publish", "max_req_timeout"),
    "max-heartbeat-interval": _ours(golang.duration, "maximum time between heartbeats", "max_heartbeat_interval"),
    "max-rdy-count": _ours(int, "maximum RDY count for a client", "max_rdy_count"),
    "max-output-buffer-size": _ours(int, "maximum that a client may ask for, in bytes", "max_output_buffer_size"),
    "max-output-buffer-timeout": _ours(golang.duration, "maximum that a client may ask for", "max_output_buffer_timeout"),
    "min-output-buffer-timeout": _ours(golang.duration, "minimum that a client may ask for", "min_output_buffer_timeout"),
    "output-buffer-timeout": _ours(golang.duration, "default that clients are told", "output_buffer_timeout"),
    "max-channel-consumers": _ours(int, "maximum consumers of a channel (0: unlimited)", "max_channel_consumers"),
    "max-deflate-level": _ours(int, "the level that clients are told", "max_deflate_level"),
}

_NOT_HERE: tuple[tuple[Callable[[str], Any], str], ...] = (
    (boolean, "worker-id statsd-mem-stats statsd-exclude-ephemeral deflate snappy"),
    (int, "max-bytes-per-file sync-every statsd-udp-packet-size queue-scan-worker-pool-max queue-scan-selection-count"),
    (golang.duration, "http-client-connect-timeout sync-timeout statsd-interval e2e-processing-latency-window-time"),
    (str, "config https-address statsd-address statsd-prefix tls-cert tls-key tls-root-ca-file"),
    (str, "tls-min-version e2e-processing-latency-percentile"),
)
FLAGS |= {name: Flag(kind, None, "accepted, has no effect") for kind, names in _NOT_HERE for name in names.split()}
FLAGS |= {
    "auth-http-address": Flag(_closed, None, "not supported"),
    "tls-required": Flag(_closed, None, "not supported", bare=True),
    "tls-client-auth-policy": Flag(_closed, None, "not supported"),
}


def parse(arguments: Sequence[str]) -> Options:
    """The options that the arguments say. Raises BadFlag."""
    options = Options()
    goflags.parse(arguments, FLAGS, options)
    if not 0 <= options.node_id < 1024:
        raise BadFlag(f"--node-id {options.node_id} is out of range: use 0 to 1023")
    return options
