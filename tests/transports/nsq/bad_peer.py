"""A peer for tests: it speaks as nsqd does, until its script misbehaves."""

from __future__ import annotations

import json
from collections.abc import Callable

import gevent
import pytest
from gevent import socket

from framework.transports.nsq import wire

IDENTITY = {"version": "1.3.0", "max_rdy_count": 2500, "msg_timeout": 60000, "max_msg_timeout": 900000}
IDS = [b"%016d" % i for i in range(100)]


class Peer:
    """One accepted connection, after IDENTIFY and SUB were answered."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.file = sock.makefile("rb")
        self.granted = False

    def greet(self, identity: bytes | None = None, sub: bytes = wire.OK) -> None:
        assert self.file.read(4) == wire.MAGIC
        assert self.file.readline() == b"IDENTIFY\n"
        self.file.read(int.from_bytes(self.file.read(4)))
        self.respond(json.dumps(IDENTITY).encode() if identity is None else identity)
        if self.file.readline().startswith(b"SUB "):
            self.respond(sub)

    def respond(self, data: bytes) -> None:
        self.sock.sendall(wire.encode_frame(wire.FRAME_RESPONSE, data))

    def refuse(self, data: bytes) -> None:
        self.sock.sendall(wire.encode_frame(wire.FRAME_ERROR, data))

    def messages(self, *ids: bytes) -> None:
        """Deliver, after the first RDY has come."""
        self.granted = self.granted or bool(self.line())
        self.sock.sendall(b"".join(wire.encode_message(1, 1, i, b"body") for i in ids))

    def line(self) -> bytes:
        return self.file.readline()


@pytest.fixture
def fake(listening: Callable[..., str]) -> Callable[[Callable[[Peer], object]], str]:
    """``fake(script)`` serves every connection by ``script(peer)`` and then closes it."""
    return lambda script: listening(lambda sock: script(Peer(sock)))


def greeted(then: Callable[[Peer], object]) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.greet()
        then(peer)

    return script


def stay(peer: Peer) -> None:
    while peer.line():
        pass


def broken(fake, subscribe, tools, then, *, grant=10, heartbeat=30.0):
    """Subscribe to a peer that does ``then``; the receiver, after the connection has ended."""
    receiver = tools.Recorder()
    connection = subscribe(fake(greeted(then)), receiver, heartbeat=heartbeat)
    connection.grant(grant)
    tools.until(lambda: receiver.ends)
    gevent.sleep(0.01)
    assert len(receiver.ends) == 1
    assert receiver.adds_up
    return receiver
