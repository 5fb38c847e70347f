"""nsqd's own command line flags, read as Go's flag package reads them, so that tools made for nsqd start this one."""

from __future__ import annotations

import hashlib
import socket
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from framework.errors import WrongUse
from framework.nsqd import golang

VERSION = "1.3.0"
"""The nsqd whose behaviour this one has; clients read it from IDENTIFY and /info."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


def _node_id() -> int:
    return zlib.crc32(hashlib.md5(socket.gethostname().encode(), usedforsecurity=False).digest()) % 1024


@dataclass
class Options:
    """Every flag that has an effect here. Times in seconds, sizes in bytes."""

    tcp_address: str = "127.0.0.1:4150"
    http_address: str = "127.0.0.1:4151"
    broadcast_address: str = field(default_factory=socket.gethostname)
    data_path: Path = Path()
    log_level: str = "INFO"
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
    version: bool = False
    help: bool = False
    warnings: list[str] = field(default_factory=list)
    """What was asked for and is not here, one sentence each."""


class BadFlag(WrongUse):
    """A flag that nsqd does not have, or a value that is not of its type. The command exits with 2, as nsqd does."""


def _boolean(text: str) -> bool:
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise ValueError(f"{text!r} is not true or false")


def _level(text: str) -> str:
    level = {"WARN": "WARNING"}.get(text.upper(), text.upper())
    if level not in LEVELS:
        raise ValueError(f"{text!r} is not one of debug, info, warn, error, fatal")
    return level


class Flag(NamedTuple):
    """``attribute`` None: nsqd has it, and it has no effect here."""

    parse: Callable[[str], Any]
    attribute: str | None
    usage: str


def _ours(parse: Callable[[str], Any], usage: str, attribute: str) -> Flag:
    return Flag(parse, attribute, usage)


FLAGS: dict[str, Flag] = {
    "while-used": _ours(_boolean, "stop when no worker uses the data path any more (not in nsqd)", "while_used"),
    "version": _ours(_boolean, "print version string", "version"),
    "tcp-address": _ours(str, "<addr>:<port> to listen on for TCP clients", "tcp_address"),
    "http-address": _ours(str, "<addr>:<port> to listen on for HTTP clients", "http_address"),
    "broadcast-address": _ours(str, "address that /info gives", "broadcast_address"),
    "data-path": _ours(Path, "path to store messages", "data_path"),
    "log-level": _ours(_level, "set log verbosity: debug, info, warn, error, or fatal", "log_level"),
    "log-prefix": _ours(str, "log message prefix", "log_prefix"),
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
    (_boolean, "verbose worker-id statsd-mem-stats statsd-exclude-ephemeral deflate snappy"),
    (int, "broadcast-tcp-port broadcast-http-port max-bytes-per-file sync-every statsd-udp-packet-size"),
    (int, "queue-scan-worker-pool-max queue-scan-selection-count"),
    (golang.duration, "http-client-connect-timeout http-client-request-timeout sync-timeout statsd-interval"),
    (golang.duration, "e2e-processing-latency-window-time"),
    (str, "config https-address lookupd-tcp-address statsd-address statsd-prefix tls-cert tls-key tls-root-ca-file"),
    (str, "tls-min-version e2e-processing-latency-percentile"),
)
FLAGS |= {name: Flag(kind, None, "accepted, has no effect") for kind, names in _NOT_HERE for name in names.split()}

_REFUSED: dict[str, Callable[[str], Any]] = {"auth-http-address": str, "tls-required": _boolean, "tls-client-auth-policy": str}
"""Ignoring one of these would open what its user wants closed."""
_BOOLEANS = {name for name, flag in FLAGS.items() if flag.parse is _boolean} | {"tls-required"}


def parse(arguments: Sequence[str]) -> Options:
    """The options that the arguments say: ``-x v``, ``--x=v``, ``--bool``, last one wins. Raises BadFlag."""
    options = Options()
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        name, given, value = word.removeprefix("-").removeprefix("-").partition("=")
        if name in ("h", "help"):
            options.help = True
            return options
        _set(options, name, _value(name, value if given else None, rest))
    if not 0 <= options.node_id < 1024:
        raise BadFlag(f"--node-id {options.node_id} is out of range: use 0 to 1023")
    return options


def _value(name: str, given: str | None, rest: list[str]) -> str:
    if name not in FLAGS and name not in _REFUSED:
        raise BadFlag(f"flag provided but not defined: -{name}")
    if given is not None:
        return given
    if name in _BOOLEANS:
        return "true"
    if not rest:
        raise BadFlag(f"flag needs an argument: -{name}")
    return rest.pop(0)


def _set(options: Options, name: str, text: str) -> None:
    flag = FLAGS.get(name) or Flag(_REFUSED[name], None, "")
    try:
        value = flag.parse(text)
    except ValueError as error:
        raise BadFlag(f'invalid value "{text}" for flag -{name}: {error}') from None
    if name in _REFUSED and value:
        raise BadFlag(f"-{name} is not supported, and ignoring it would let in whom it keeps out: leave it away")
    if flag.attribute is not None:
        setattr(options, flag.attribute, value)
    elif value and name not in ("verbose", "worker-id"):
        options.warnings.append(f"-{name} has no effect here")


def usage() -> str:
    """What --help prints."""
    lines = [f"  -{name}\n    \t{flag.usage}" for name, flag in sorted(FLAGS.items())]
    return "Usage of nsqd:\n" + "\n".join(lines)
