"""A socket to a nats-server while both sides introduce themselves: what is said, one by one, and TLS where it is asked for. Which
words are due, others know: for a client ``dial``, for another server ``nats_route.line``.

It blocks its greenlet and ends with a plain non-blocking socket for a watcher on the hub.
"""

from __future__ import annotations

import _socket
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import gevent
from gevent import socket as gsocket

from framework.errors import BrokerUnreachable, ProtocolError, cannot_be_reached
from framework.transports.addresses import split_address
from framework.transports.nats import credentials, wire
from framework.transports.stream import Socket, Tls, receive, send_all, shake_hands

_OPTIONS = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1))
_AT_ONCE = 100
"""Events that are looked at before the hub turns."""

Event = TypeVar("Event")


class Opening(Generic[Event]):
    """``server`` is the other side's address, ``info`` what it said of itself."""

    def __init__(self, server: str, sock: _socket.socket, decoder: wire.Decoder[Event]) -> None:
        self.server = server
        self.info = wire.Info()
        self.decoder = decoder
        self.events: list[Event] = []
        """What was not looked at yet: in the end what came behind the introduction, for the next reader."""
        self._stream: Socket | None = sock
        self._taken = 0

    def next(self) -> Event:
        """Raises ProtocolError, OSError, and ``stream.Closed`` at the end of the stream."""
        while not self.events:
            data = receive(self._open, f"nats-server {self.server}")
            gevent.sleep(0)  # or one who always has something to say would keep the hub from all others, and from our time limit
            self._decode(data)
        self._taken += 1
        if self._taken % _AT_ONCE == 0:
            gevent.sleep(0)
        return self.events.pop(0)

    def _decode(self, data: bytes) -> None:
        try:
            self.events += self.decoder.feed(data)
        except ProtocolError as error:
            raise ProtocolError(f"{self.server}: {error}") from None

    def start_tls(self, tls: Tls) -> None:
        self._stream = shake_hands(self._open, tls, f"nats-server {self.server}")
        if early := tls.decode(b""):  # it may stand right behind the last word of TLS
            self._decode(early)

    @property
    def _open(self) -> Socket:
        assert self._stream is not None
        return self._stream

    def send(self, data: bytes) -> None:
        send_all(self._open, data)

    def close(self) -> None:
        """Unless it was released."""
        if self._stream is not None:
            self._stream.close()

    def release(self) -> Socket:
        """The stream itself: the caller closes it."""
        stream, self._stream = self._open, None
        return stream


@contextmanager
def explained(server: str, timeout: float, hint: Callable[[], str] = str) -> Iterator[None]:
    """What goes wrong in the block, in a sentence that names ``server``. ``timeout``: seconds for all of it.

    Raises BrokerUnreachable (refused, unknown host, silent, with a ``hint``), TlsFailed, and what the block raises."""
    limit = gevent.Timeout(timeout)
    try:
        with limit:
            yield
    except gevent.Timeout as error:
        if error is not limit:
            raise
        raise BrokerUnreachable(f"nats-server {server} did not answer within {timeout:.3g} s{hint()}") from None
    except ssl.SSLError as error:
        raise credentials.refusal(server, error) from error
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA refuses
        raise cannot_be_reached(f"nats-server {server}", error) from error


def connected(server: str) -> _socket.socket:
    """Raises OSError, UnicodeError."""
    return bare(gsocket.create_connection(split_address(server)))


def bare(sock: socket.socket) -> _socket.socket:
    """The socket itself, non-blocking, out of gevent's hands."""
    for level, option, value in _OPTIONS:
        sock.setsockopt(level, option, value)
    made = _socket.socket(fileno=sock.detach())
    made.setblocking(False)
    return made
