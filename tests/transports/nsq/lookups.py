"""nsqlookupds for tests: what they answer, and a wait until they know."""

from __future__ import annotations

import time

import gevent
import gevent.event

from framework.testing.servers import Server
from framework.transports.nsq.http import Lookupd


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body)


def producers(*nodes: tuple[str, int]) -> dict:
    return {
        "channels": [],
        "producers": [{"broadcast_address": host, "tcp_port": port, "http_port": 4151} for host, port in nodes],
    }


def registered(lookupd: Server, topic: str, n: int) -> None:
    """Where one of the two was not heard of for a second, on a busy machine, nsqd tries again after 15 s and not before."""
    deadline = time.monotonic() + 40
    while len(Lookupd(lookupd.http_address).lookup(topic).producers) != n:
        assert time.monotonic() < deadline
        gevent.sleep(0.02)
