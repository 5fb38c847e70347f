"""Dials an nsqd and negotiates (magic, IDENTIFY, SUB): what consumers, producers and probes have in common.

It blocks its greenlet and ends with a plain non-blocking socket: what follows belongs to a watcher on the hub.
Source: TCP protocol specification, IDENTIFY and SUB; nsqd's protocol_v2.go.
"""

from __future__ import annotations

import _socket
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata

import gevent
import msgspec
from gevent import socket as gsocket

from framework.errors import BrokerError, BrokerUnreachable, ProtocolError
from framework.message import Message
from framework.transports.contract import Limits
from framework.transports.nsq import wire
from framework.transports.nsq.urls import split_address

RECV_SIZE = 65536
CONNECT_TIMEOUT = 5.0
HEARTBEAT = 30.0
OUTPUT_BUFFER_TIMEOUT = 0.025
"""Seconds that nsqd may hold back messages to fill its buffer; its default of 0.25 makes light traffic slow."""


class Identity(msgspec.Struct):
    """nsqd's answer to IDENTIFY with feature_negotiation. Times in milliseconds, as on the wire."""

    version: str
    max_rdy_count: int
    msg_timeout: int
    max_msg_timeout: int

    def limits(self) -> Limits:
        return Limits(lease=self.msg_timeout / 1e3, max_lease=self.max_msg_timeout / 1e3, max_grant=self.max_rdy_count)


_identity = msgspec.json.Decoder(Identity)


class Line:
    """A dialed, negotiated socket: what a Connection, a producer's Link or a probe is made from."""

    def __init__(self, node: str, sock: gsocket.socket) -> None:
        self.node = node
        self.decoder = wire.Decoder()
        self.identity = Identity("", 0, 0, 0)
        self._sock = sock
        self.pending: list[bytes | BrokerError] = []
        """Frames that came with or after the last answer: for whoever reads next."""

    def ask(self, command: bytes) -> bytes:
        """Send ``command`` and return its response; heartbeats in between are answered."""
        self._sock.sendall(command)
        while (answer := self._next()) == wire.HEARTBEAT:
            self._sock.sendall(wire.NOP)
        if isinstance(answer, BrokerError):
            raise answer
        return answer

    def _next(self) -> bytes | BrokerError:
        while not self.pending:
            data = self._sock.recv(RECV_SIZE)
            if not data:
                raise BrokerUnreachable(f"nsqd {self.node} closed the connection while it was being set up")
            messages, self.pending = self._decoded(data)
            if messages:
                raise ProtocolError(f"nsqd {self.node} sent a message before it was asked for any")
        return self.pending.pop(0)

    def _decoded(self, data: bytes) -> tuple[list[Message], list[bytes | BrokerError]]:
        try:
            return self.decoder.feed(data)
        except ProtocolError as error:
            if data.startswith(b"HTTP/"):
                raise ProtocolError(f"{self.node} answers HTTP: name nsqd's TCP port, 4150 unless told otherwise") from None
            raise ProtocolError(f"{self.node}: {error}") from None

    def identify(self, lease: float | None, heartbeat: float) -> None:
        answer = self.ask(wire.MAGIC + wire.identify(_fields(lease, heartbeat)))
        try:
            self.identity = _identity.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(f"nsqd {self.node} answered IDENTIFY with {answer[:80]!r}: {error}") from None

    def release(self) -> _socket.socket:
        """The socket itself, non-blocking, out of gevent's hands."""
        sock = _socket.socket(fileno=self._sock.detach())
        sock.setblocking(False)
        return sock


@contextmanager
def dial(
    node: str, *, lease: float | None = None, heartbeat: float = HEARTBEAT, timeout: float = CONNECT_TIMEOUT
) -> Iterator[Line]:
    """A Line to ``node`` after IDENTIFY; closed at the end unless it was released. Times in seconds.

    Raises BrokerUnreachable (refused, unknown host, silent for ``timeout``), BrokerError, ProtocolError.
    """
    limit = gevent.Timeout(timeout)
    sock: gsocket.socket | None = None
    try:
        with limit:
            sock = gsocket.create_connection(split_address(node))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = Line(node, sock)
            line.identify(lease, heartbeat)
            yield line
    except gevent.Timeout as error:
        if error is not limit:
            raise
        raise BrokerUnreachable(f"nsqd {node} did not answer within {timeout:g} s") from None
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA refuses
        raise BrokerUnreachable(f"nsqd {node} cannot be reached: {error}") from error
    finally:
        if sock is not None:
            sock.close()


def _fields(lease: float | None, heartbeat: float) -> dict[str, object]:
    fields: dict[str, object] = {
        "client_id": f"{_hostname().partition('.')[0]}:{os.getpid()}",
        "hostname": _hostname(),
        "user_agent": user_agent(),
        "feature_negotiation": True,
        "heartbeat_interval": wire.milliseconds(heartbeat),
        "output_buffer_timeout": wire.milliseconds(OUTPUT_BUFFER_TIMEOUT),
    }
    if lease is not None:
        fields["msg_timeout"] = wire.milliseconds(lease)
    return fields


@cache
def _hostname() -> str:
    return socket.gethostname()


@cache
def user_agent() -> str:
    try:
        return f"nsq-workers/{metadata.version('nsq-workers')}"
    except metadata.PackageNotFoundError:  # run from a source folder that was never installed
        return "nsq-workers"
