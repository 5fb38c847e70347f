"""Dials a nats-server and is let in (INFO, CONNECT, PING, PONG): what sessions, publishers and probes have in common.

It blocks its greenlet and ends with a plain non-blocking socket for a watcher on the hub.
Source: the client protocol of the NATS documentation, INFO and CONNECT; nats-server's client.go for its errors.
"""

from __future__ import annotations

import _socket
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
from gevent import socket as gsocket

from framework.errors import AccessDenied, BrokerError, BrokerUnreachable, NegotiationRefused, ProtocolError
from framework.transports.addresses import split_address
from framework.transports.nats import wire
from framework.transports.nats.urls import Login
from framework.version import AGENT

RECV_SIZE = 65536
CONNECT_TIMEOUT = 5.0
_NOBODY = Login()
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


class Line:
    """A dialled socket on which we were let in. ``server`` is its address, ``info`` what it said of itself."""

    def __init__(self, server: str, sock: gsocket.socket) -> None:
        self.server = server
        self.info = wire.Info()
        self.decoder = wire.ClientDecoder()
        self.events: list[wire.ClientEvent] = []
        """After ``enter``: what came behind the last answer, for whoever reads next."""
        self._sock = sock

    def enter(self, login: Login) -> None:
        """Raises AccessDenied, NegotiationRefused, BrokerError, BrokerUnreachable, ProtocolError."""
        said = self._next()
        if not isinstance(said, wire.Info):
            raise ProtocolError(f"{self.server} began with {said!r:.80}, and a nats-server begins with INFO")
        if not said.client_id:
            raise NegotiationRefused(
                "INFO", "", fix=f"{self.server} is no port for clients of a nats-server: name that, 4222 as a rule"
            )
        if said.tls_required:
            raise NegotiationRefused(
                "INFO", "", fix=f"nats-server {self.server} takes TLS only, which this version does not speak"
            )
        self.info = said
        self._sock.sendall(wire.connect(_fields(login)) + wire.PING)
        while (answer := self._next()) is not wire.Word.PONG:
            if isinstance(answer, wire.Err):
                raise refusal(answer.words)
            if answer is wire.Word.PING:
                self._sock.sendall(wire.PONG)
            elif isinstance(answer, wire.Msg):
                raise ProtocolError(f"{self.server} sent a message before anything was subscribed to: it is no nats-server")

    def _next(self) -> wire.ClientEvent:
        while not self.events:
            data = self._sock.recv(RECV_SIZE)
            if not data:
                raise BrokerUnreachable(f"nats-server {self.server} closed the connection while it was being set up")
            try:
                self.events = self.decoder.feed(data)
            except ProtocolError as error:
                raise ProtocolError(f"{self.server}: {error}") from None
        return self.events.pop(0)

    def close(self) -> None:
        self._sock.close()

    def release(self) -> _socket.socket:
        """The socket itself, non-blocking, out of gevent's hands."""
        sock = _socket.socket(fileno=self._sock.detach())
        sock.setblocking(False)
        return sock


def refusal(words: str) -> BrokerError:
    """A -ERR that ends a connection, as an error of the class that tells what can be done."""
    start = words.lower()
    if start.startswith(("authorization violation", "user authentication", "account authentication")):
        return AccessDenied(words, fix="the user, password or token before the @ of the broker URL is missing, or wrong")
    if start.startswith(("secure connection", "tls")):
        return NegotiationRefused(words)
    return BrokerError(words)


@contextmanager
def dial(server: str, login: Login = _NOBODY, timeout: float = CONNECT_TIMEOUT) -> Iterator[Line]:
    """A Line to ``server``, closed at the end unless it was released. ``timeout``: seconds for all that is done with it.

    Raises BrokerUnreachable (refused, unknown host, silent), AccessDenied, NegotiationRefused, BrokerError, ProtocolError.
    """
    limit = gevent.Timeout(timeout)
    line: Line | None = None
    try:
        with limit:
            line = Line(server, _connected(server))
            line.enter(login)
            yield line
    except gevent.Timeout as error:
        if error is not limit:
            raise
        raise BrokerUnreachable(f"nats-server {server} did not answer within {timeout:g} s") from None
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA refuses
        raise BrokerUnreachable(f"nats-server {server} cannot be reached: {error}") from error
    finally:
        if line is not None:
            line.close()


def _connected(server: str) -> gsocket.socket:
    sock = gsocket.create_connection(split_address(server))
    for level, option, value in _KEEPALIVE:
        sock.setsockopt(level, option, value)
    return sock


def _fields(login: Login) -> dict[str, object]:
    name, _, version = AGENT.partition("/")
    fields: dict[str, object] = {
        "verbose": False, "pedantic": False, "lang": "python-" + name, "version": version, "protocol": 1, "headers": True,
        "no_responders": True, "name": AGENT,
    }  # fmt: skip
    wanted = {"user": login.user, "pass": login.password, "auth_token": login.token}
    return fields | {name: value for name, value in wanted.items() if value}
