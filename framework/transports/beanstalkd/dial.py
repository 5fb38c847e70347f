"""Dials a beanstalkd and asks it one thing after the other: what connections, producers and the client have in common.

It blocks its greenlet and ends, for connections and producers, with a plain non-blocking socket for a watcher on the hub.
"""

from __future__ import annotations

import _socket
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
from gevent import socket as gsocket

from framework.errors import BrokerUnreachable, ProtocolError, cannot_be_reached
from framework.forked import let_go
from framework.transports.addresses import split_address
from framework.transports.beanstalkd import wire

RECV_SIZE = 65536
CONNECT_TIMEOUT = 5.0
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
"""A peer that is gone without a word, under a connection that only waits, is noticed after a minute."""


class Line:
    """A dialled socket, and the replies that are read from it."""

    def __init__(self, node: str, sock: gsocket.socket) -> None:
        self.node = node
        self.decoder = wire.Decoder()
        self._sock = sock
        self._replies: list[wire.Reply] = []

    def send(self, commands: bytes) -> None:
        """Blocks until the socket has taken all. Raises OSError."""
        self._sock.sendall(commands)

    def next(self) -> wire.Reply:
        """The next reply, errors among them; blocks. Raises BrokerUnreachable, ProtocolError, OSError."""
        while not self._replies:
            data = self._sock.recv(RECV_SIZE)
            if not data:
                raise BrokerUnreachable(f"beanstalkd {self.node} closed the connection")
            try:
                self._replies = self.decoder.feed(data)
            except ProtocolError as error:
                raise ProtocolError(f"{self.node}: {error}") from None
        return self._replies.pop(0)

    def ask(self, command: bytes, *words: str) -> wire.Reply:
        """Send ``command`` and return its reply. Raises BrokerError for one that is none of ``words``, and as ``next`` does."""
        self.send(command)
        reply = self.next()
        if reply.word in words:
            return reply
        if reply.word in wire.ERRORS:
            raise wire.error_of(reply)
        raise ProtocolError(f"beanstalkd {self.node} answered {command[:40]!r} with {reply.word}")

    def subscribe(self, tube: str) -> None:
        """Watch ``tube`` and nothing else."""
        self.ask(wire.watch(tube), "WATCHING")
        if tube != "default":
            self.ask(wire.ignore("default"), "WATCHING")

    def settimeout(self, seconds: float | None) -> None:
        """How long each read and write may block."""
        self._sock.settimeout(seconds)

    def shut(self) -> None:
        """Say that no more will be sent: ends a ``reserve`` that waits, without losing a job."""
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()

    def forget(self) -> None:
        """In a forked child: the socket is the parent's, and so is what it brings."""
        if not self._sock.closed:
            let_go(self._sock.fileno())

    def release(self) -> _socket.socket:
        """The socket itself, non-blocking, out of gevent's hands."""
        sock = _socket.socket(fileno=self._sock.detach())
        sock.setblocking(False)
        return sock


def open_line(node: str, timeout: float = CONNECT_TIMEOUT) -> Line:
    """Dial ``node``; blocks, ``timeout`` seconds at most. Raises BrokerUnreachable."""
    try:
        sock = gsocket.create_connection(split_address(node), timeout)
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA refuses
        raise cannot_be_reached(f"beanstalkd {node}", error) from error
    for level, option, value in _KEEPALIVE:
        sock.setsockopt(level, option, value)
    return Line(node, sock)


@contextmanager
def dial(node: str, timeout: float = CONNECT_TIMEOUT) -> Iterator[Line]:
    """A Line to ``node``, closed at the end unless it was released. ``timeout``: seconds for all that is done with it.

    Raises BrokerUnreachable (refused, unknown host, silent), BrokerError, ProtocolError.
    """
    limit = gevent.Timeout(timeout)
    line: Line | None = None
    try:
        with limit:
            line = open_line(node, timeout)
            yield line
    except gevent.Timeout as error:
        if error is not limit:
            raise
        raise BrokerUnreachable(f"beanstalkd {node} did not answer within {timeout:.3g} s") from None
    except OSError as error:
        raise cannot_be_reached(f"beanstalkd {node}", error) from error
    finally:
        if line is not None:
            line.close()
