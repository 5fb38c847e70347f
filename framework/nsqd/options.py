"""nsqd's own command line flags, so that tools made for nsqd start this one."""

from __future__ import annotations

import hashlib
import socket
import ssl
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from framework.errors import BadSetting
from framework.nsqd import goflags, golang, pertopic
from framework.nsqd.goflags import BadFlag, CommonOptions, Flag, boolean
from framework.transports.nsq import urls

VERSION = "1.3.0"
"""The NSQ whose behaviour these daemons have; clients read it from IDENTIFY and /info."""
TLS_NOT_REQUIRED, TLS_REQUIRED_EXCEPT_HTTP, TLS_REQUIRED = 0, 1, 2
"""--tls-required: false, tcp-https, true."""
TLS_VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1_2,  # older ones are no longer safe, nor what OpenSSL speaks
    "tls1.1": ssl.TLSVersion.TLSv1_2,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


def _node_id() -> int:
    return zlib.crc32(hashlib.md5(socket.gethostname().encode(), usedforsecurity=False).digest()) % 1024


@dataclass(kw_only=True)
class Options(CommonOptions):
    """Every flag that has an effect here. Times in seconds, sizes in bytes."""

    tcp_address: str = "127.0.0.1:4150"
    http_address: str = "127.0.0.1:4151"
    https_address: str = "127.0.0.1:4152"
    """Listened on with a certificate only."""
    auth_http_addresses: list[str] = field(default_factory=list)
    broadcast_address: str = field(default_factory=socket.gethostname)
    broadcast_tcp_port: int = 0
    """What nsqlookupd is told; 0: the port that is listened on."""
    broadcast_http_port: int = 0
    lookupd_tcp_addresses: list[str] = field(default_factory=list)
    http_client_request_timeout: float = 5.0
    data_path: Path = Path()
    topic_quotas: list[tuple[str, int]] = field(default_factory=list)
    """Unfinished messages that a topic may have; with more, publishes are refused."""
    topic_ages: list[tuple[str, float]] = field(default_factory=list)
    """How old its messages may become."""
    log_prefix: str = "[nsqd] "
    node_id: int = field(default_factory=_node_id)
    mem_queue_size: int = 10000
    sync_every: int = 0
    """0: every group of publishes, before their OK. Messages, and seconds, that may wait for a sync after their OK."""
    sync_timeout: float = 0.0
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
    deflate: bool = True
    snappy: bool = field(default_factory=lambda: find_spec("snappy") is not None)
    tls_cert: str = ""
    tls_key: str = ""
    tls_required: int = TLS_NOT_REQUIRED
    tls_client_auth_policy: str = ""
    tls_root_ca_file: str = ""
    tls_min_version: str = "tls1.0"
    tls_context: ssl.SSLContext | None = None
    """Made of the others."""
    client_timeout: float = 60.0
    """Twice the default heartbeat interval; nsqd has no flag for it."""
    while_used: bool = False
    drain_to: str = ""
    """The URL of an nsqd that shall have everything; nothing is served then."""
    drain_all_channels: bool = False
    verify: bool = False
    """These look at the data path, or copy it; nothing is served then."""
    inspect: bool = False
    json: bool = False
    backup: Path | None = None


def _ours(parse: Callable[[str], Any], usage: str, attribute: str) -> Flag:
    return Flag(parse, attribute, usage)


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("it is not <host>:<port>")
    return text


def _target(text: str) -> str:
    """The URL of one nsqd."""
    url = text if "://" in text else f"nsq://{_address(text)}"
    if url.partition("://")[0] not in ("nsq", "nsq+tls", "nsq+unix"):
        raise ValueError("it is not <host>:<port>, nor the URL of an nsqd, such as nsq+tls://<host>:<port>")
    try:
        found = urls.read([url])
    except BadSetting as error:
        raise ValueError(str(error)) from None
    if len(found.nsqds) != 1:
        raise ValueError("it names more than one nsqd")
    return url


def _required(text: str) -> int:
    if text.lower() == "tcp-https":
        return TLS_REQUIRED_EXCEPT_HTTP
    return TLS_REQUIRED if boolean(text.lower()) else TLS_NOT_REQUIRED


def _above(least: float, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """nsqd takes anything here, and then redelivers without end or refuses every message."""

    def checked(text: str) -> Any:
        if (value := parse(text)) < least:
            raise ValueError(f"it must be at least {least:g}{'s' if parse is golang.duration else ''}")
        return value

    return checked


_duration = _above(0.001, golang.duration)
_size = _above(1, golang.whole)
_messages = _above(1, partial(golang.whole, of="messages"))


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"it is not one of {', '.join(words)}")
        return text.lower()

    return parse


def _snappy(text: str) -> bool:
    if boolean(text) and find_spec("snappy") is None:
        raise ValueError("python-snappy is not installed: pip install python-snappy")
    return boolean(text)


FLAGS: dict[str, Flag] = goflags.COMMON | {
    "while-used": _ours(boolean, "stop when no worker uses the data path any more (not in nsqd)", "while_used"),
    "drain-to": _ours(_target, "<addr>:<port> or URL of an nsqd: move everything there, then end (not in nsqd)", "drain_to"),
    "drain-all-channels": _ours(
        boolean, "move messages that only some channels have not finished, for all of them (not in nsqd)", "drain_all_channels"
    ),
    "verify": _ours(boolean, "say whether the data path is sound, then end; changes nothing (not in nsqd)", "verify"),
    "inspect": _ours(boolean, "say what lies in the data path, then end; changes nothing (not in nsqd)", "inspect"),
    "json": _ours(boolean, "with --inspect: as JSON (not in nsqd)", "json"),
    "backup": _ours(Path, "folder to copy the data path to, also while it is served, then end (not in nsqd)", "backup"),
    "tcp-address": _ours(str, "<addr>:<port> to listen on for TCP clients", "tcp_address"),
    "http-address": _ours(str, "<addr>:<port> to listen on for HTTP clients", "http_address"),
    "https-address": _ours(str, "<addr>:<port> to listen on for HTTPS clients", "https_address"),
    "broadcast-address": _ours(str, "address that nsqlookupd and /info give", "broadcast_address"),
    "broadcast-tcp-port": _ours(golang.whole, "TCP port that nsqlookupd and /info give", "broadcast_tcp_port"),
    "broadcast-http-port": _ours(golang.whole, "HTTP port that nsqlookupd and /info give", "broadcast_http_port"),
    "auth-http-address": Flag(
        str, "auth_http_addresses", "<addr>:<port> or URL of a server to ask what clients may do (may be repeated)", repeated=True
    ),
    "lookupd-tcp-address": Flag(
        _address, "lookupd_tcp_addresses", "<addr>:<port> of an nsqlookupd to register with (may be repeated)", repeated=True
    ),
    "http-client-request-timeout": _ours(
        golang.duration, "how long nsqlookupd or an auth server may take to answer", "http_client_request_timeout"
    ),
    "data-path": _ours(Path, "path to store messages", "data_path"),
    "topic-quota": Flag(
        pertopic.setting(_messages),
        "topic_quotas",
        "TOPIC=MESSAGES: refuse publishes to it beyond so many unfinished ones; *: any other (may be repeated, not in nsqd)",
        repeated=True,
    ),
    "topic-max-age": Flag(
        pertopic.setting(_duration),
        "topic_ages",
        "TOPIC=DURATION: drop, count and report what is older; *: any other (may be repeated, not in nsqd)",
        repeated=True,
    ),
    "node-id": _ours(golang.whole, "number of this node in [0,1024)", "node_id"),
    "mem-queue-size": _ours(_above(0, golang.whole), "messages that an #ephemeral topic or channel holds", "mem_queue_size"),
    "sync-every": _ours(_size, "messages that may wait for a sync after their OK (default: none)", "sync_every"),
    "sync-timeout": _ours(_duration, "how long they may wait for it", "sync_timeout"),
    "msg-timeout": _ours(_duration, "default duration to wait before requeueing a message", "msg_timeout"),
    "max-msg-timeout": _ours(_duration, "maximum duration that touching can reach", "max_msg_timeout"),
    "max-msg-size": _ours(_size, "maximum size of a single message in bytes", "max_msg_size"),
    "max-body-size": _ours(_size, "maximum size of a single command body in bytes", "max_body_size"),
    "max-req-timeout": _ours(_above(0, golang.duration), "maximum delay of a requeue or a deferred publish", "max_req_timeout"),
    "max-heartbeat-interval": _ours(_duration, "maximum time between heartbeats", "max_heartbeat_interval"),
    "max-rdy-count": _ours(_size, "maximum RDY count for a client", "max_rdy_count"),
    "max-output-buffer-size": _ours(golang.whole, "maximum that a client may ask for, in bytes", "max_output_buffer_size"),
    "max-output-buffer-timeout": _ours(golang.duration, "maximum that a client may ask for", "max_output_buffer_timeout"),
    "min-output-buffer-timeout": _ours(golang.duration, "minimum that a client may ask for", "min_output_buffer_timeout"),
    "output-buffer-timeout": _ours(golang.duration, "default that clients are told", "output_buffer_timeout"),
    "max-channel-consumers": _ours(golang.whole, "maximum consumers of a channel (0: unlimited)", "max_channel_consumers"),
    "deflate": _ours(boolean, "let clients ask for deflate", "deflate"),
    "max-deflate-level": _ours(golang.whole, "maximum level of deflate that a client can ask for", "max_deflate_level"),
    "snappy": Flag(_snappy, "snappy", "let clients ask for snappy", bare=True),
    "tls-cert": _ours(str, "path to certificate file", "tls_cert"),
    "tls-key": _ours(str, "path to key file", "tls_key"),
    "tls-required": Flag(_required, "tls_required", "require TLS of clients: true, false, tcp-https", bare=True),
    "tls-client-auth-policy": _ours(
        _one_of("require", "require-verify"), "require certificates of clients", "tls_client_auth_policy"
    ),
    "tls-root-ca-file": _ours(str, "path to the authorities of clients' certificates", "tls_root_ca_file"),
    "tls-min-version": _ours(_one_of(*TLS_VERSIONS), "minimum TLS version", "tls_min_version"),
}

_NOT_HERE: tuple[tuple[Callable[[str], Any], str], ...] = (
    (boolean, "worker-id statsd-mem-stats statsd-exclude-ephemeral"),
    (golang.whole, "max-bytes-per-file statsd-udp-packet-size queue-scan-worker-pool-max queue-scan-selection-count"),
    (golang.duration, "http-client-connect-timeout statsd-interval e2e-processing-latency-window-time"),
    (str, "config statsd-address statsd-prefix e2e-processing-latency-percentile"),
)
FLAGS |= {name: Flag(kind, None, "accepted, has no effect") for kind, names in _NOT_HERE for name in names.split()}


def parse(arguments: Sequence[str]) -> Options:
    """The options that the arguments say. Raises BadFlag."""
    options = Options()
    goflags.parse(arguments, FLAGS, options)
    if not 0 <= options.node_id < 1024:
        raise BadFlag(f"--node-id {options.node_id} is out of range: use 0 to 1023")
    if not 1 <= options.max_deflate_level <= 9:
        raise BadFlag(f"--max-deflate-level {options.max_deflate_level} is out of range: use 1 to 9")
    if options.drain_all_channels and not options.drain_to:
        raise BadFlag("--drain-all-channels says how to drain: add --drain-to=<addr>:<port>")
    if sum(map(bool, (options.drain_to, options.verify, options.inspect, options.backup))) > 1:
        raise BadFlag("--drain-to, --verify, --inspect and --backup each do one thing and end: give one of them")
    if options.json and not options.inspect:
        raise BadFlag("--json says how to inspect: add --inspect")
    if options.tls_client_auth_policy and not options.tls_required:
        options.tls_required = TLS_REQUIRED
    if options.sync_every or options.sync_timeout:
        options.sync_every = options.sync_every or 2500  # the other one is nsqd's default
        options.sync_timeout = options.sync_timeout or 2.0
        options.warnings.append(
            f"-sync-every={options.sync_every} -sync-timeout={options.sync_timeout:g}s: a power cut may lose that much of what "
            "was confirmed; without these flags an OK means that the message is on the disk"
        )
    return options


def as_markdown() -> str:
    """The list of nsqd's flags in docs/nsqd.md."""
    host = {
        "broadcast-address": "the host's name",
        "broadcast-tcp-port": "the port listened on",
        "broadcast-http-port": "the port listened on",
        "node-id": "made of the host's name",
        "data-path": "the working folder",
        "snappy": "true, with `python-snappy` installed",
        "sync-every": "each OK after its sync",
        "sync-timeout": "with `--sync-every`: 2s",
        "tls-required": "false",
    }
    return goflags.as_markdown(FLAGS, Options(), host)


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
