"""nsqlookupd's own command line flags, so that tools made for nsqlookupd start this one."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from framework.nsqd import goflags, golang
from framework.nsqd.goflags import CommonOptions, Flag


@dataclass(kw_only=True)
class Options(CommonOptions):
    """Times in seconds."""

    log_prefix: str = "[nsqlookupd] "
    # nsqlookupd itself listens on every address unless told otherwise; this one only where it is asked to.
    tcp_address: str = "127.0.0.1:4160"
    http_address: str = "127.0.0.1:4161"
    broadcast_address: str = field(default_factory=socket.gethostname)
    inactive_producer_timeout: float = 300.0
    tombstone_lifetime: float = 45.0


FLAGS: dict[str, Flag] = goflags.COMMON | {
    "config": Flag(str, None, "accepted, has no effect"),
    "tcp-address": Flag(str, "tcp_address", "<addr>:<port> to listen on for nsqds"),
    "http-address": Flag(str, "http_address", "<addr>:<port> to listen on for HTTP clients"),
    "broadcast-address": Flag(str, "broadcast_address", "address of this nsqlookupd that nsqds are told"),
    "inactive-producer-timeout": Flag(
        golang.duration, "inactive_producer_timeout", "how long after its last ping an nsqd is still named"
    ),
    "tombstone-lifetime": Flag(golang.duration, "tombstone_lifetime", "how long a tombstoned nsqd is not named for a topic"),
}


def parse(arguments: Sequence[str]) -> Options:
    """The options that the arguments say. Raises BadFlag."""
    options = Options()
    goflags.parse(arguments, FLAGS, options)
    return options


def as_markdown() -> str:
    """The list of nsqlookupd's flags in docs/nsqd.md."""
    return goflags.as_markdown(FLAGS, Options(), {"broadcast-address": "the host's name"})


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
