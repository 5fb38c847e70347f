"""A socket that is full while the hub is blocked: what was to be said in its place is said once there is room again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import gevent
import pytest
from gevent import socket

from framework.transports.nats import wire
from framework.transports.nats.session import Session

LARGE = b"x" * (4 << 20)
"""More than a socket takes at once."""


@pytest.fixture
def pair() -> Iterator[tuple[Session, Any]]:
    """A session whose socket is full, and its server's end."""
    ours, server = socket.socketpair()
    ours.setblocking(False)
    line: Any = SimpleNamespace(
        server="127.0.0.1:4222", info=None, decoder=wire.ClientDecoder(), events=[], release=lambda: ours._sock
    )
    session = Session(cast(Any, line), 60.0)
    session.say(LARGE)
    gevent.sleep(0.01)
    assert session._outbox.full
    yield session, server
    session.close()
    server.close()


def drained(server: Any, size: int) -> bytes:
    """What comes until ``size`` bytes are there, and no more comes."""
    data = b""
    with gevent.Timeout(5):
        while len(data) < size:
            data += server.recv(1 << 20)
    with gevent.Timeout(0.2, False):
        data += server.recv(1 << 20)
    return data


def test_a_ping_that_was_read_while_the_socket_was_full_is_answered_when_the_hub_turns(pair: tuple[Session, Any]) -> None:
    session, server = pair
    server.sendall(wire.PING)
    session.rescue(monotonic(), ())
    session.rescued()
    assert drained(server, len(LARGE)).removeprefix(LARGE) == wire.PONG


def test_it_is_answered_by_the_next_rescue_where_that_finds_room(pair: tuple[Session, Any]) -> None:
    session, server = pair
    server.sendall(wire.PING)
    session.rescue(monotonic(), ())
    server.setblocking(False)  # nothing below lets the hub turn
    data = b""
    while not data.endswith(wire.PONG):
        with suppress(BlockingIOError):
            data += server._sock.recv(1 << 20)
        session.rescue(monotonic(), ())
        assert len(data) <= len(LARGE) + len(wire.PONG)
    assert data.removeprefix(LARGE) == wire.PONG
    server.setblocking(True)
    session.rescued()
    with gevent.Timeout(0.2, False):
        assert server.recv(100) == b"", "it was answered twice"
