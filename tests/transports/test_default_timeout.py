"""``socket.setdefaulttimeout``, which an app may call for its own sockets, lets no read or write on the hub wait."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from framework.transports.beanstalkd.dial import open_line
from framework.transports.nats.opening import connected as to_nats
from framework.transports.nsq.dial import _connected as to_nsqd
from framework.transports.rocketmq.dial import _connected as to_rocketmq


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """It takes connections and says nothing. Sockets that are made from here on have a time limit."""
    socket.setdefaulttimeout(3.0)
    try:
        with socket.create_server(("127.0.0.1", 0)) as made:
            yield made
    finally:
        socket.setdefaulttimeout(None)


DIALS = {
    "nsq": to_nsqd,
    "nats": to_nats,
    "beanstalkd": lambda node: open_line(node).release(),
    "rocketmq": to_rocketmq,
}


@pytest.mark.parametrize("name", DIALS)
def test_a_read_that_finds_nothing_returns_at_once(name: str, server: socket.socket) -> None:
    sock = DIALS[name](f"127.0.0.1:{server.getsockname()[1]}")
    try:
        with pytest.raises(BlockingIOError):
            sock.recv(1)
    finally:
        sock.close()
