"""Dials a nats-server and introduces itself (INFO, CONNECT, PING, PONG): what sessions, publishers and probes have in common.

It blocks its greenlet and ends with a plain non-blocking socket for a watcher on the hub.
Source: the client protocol of the NATS documentation, INFO and CONNECT; nats-server's client.go for its errors.
"""

from __future__ import annotations

import _socket
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import gevent
from gevent import socket as gsocket

from framework.errors import AccessDenied, BrokerError, BrokerUnreachable, NegotiationRefused, ProtocolError, TlsFailed
from framework.transports.addresses import split_address
from framework.transports.nats import credentials, wire
from framework.transports.nats.urls import Login, Secrets
from framework.transports.stream import Socket, Tls, receive, send_all, shake_hands
from framework.version import AGENT

CONNECT_TIMEOUT = 5.0
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


_NOBODY, _NO_FILES = Login(), Secrets()


@dataclass(frozen=True, slots=True)
class Way:
    """How a server is entered. ``tls``: or not at all; ``tls_first``: before the server has said anything."""

    login: Login = _NOBODY
    tls: bool = False
    tls_first: bool = False
    secrets: Secrets = _NO_FILES


_PLAIN = Way()


class Line:
    """A dialled socket whose server has accepted us. ``server`` is its address, ``info`` what it said of itself."""

    def __init__(self, server: str, sock: _socket.socket) -> None:
        self.server = server
        self.info = wire.Info()
        self.decoder = wire.ClientDecoder()
        self.events: list[wire.ClientEvent] = []
        """After ``enter``: what came behind the last answer, for the next reader."""
        self._stream: Socket | None = sock

    def enter(self, way: Way) -> None:
        """Raises AccessDenied, NegotiationRefused, TlsFailed, BrokerError, BrokerUnreachable, ProtocolError, BadSetting."""
        if way.tls_first:
            self._start_tls(way)
        said = self._next()
        if not isinstance(said, wire.Info):
            raise ProtocolError(f"{self.server} began with {said!r:.80}, and a nats-server begins with INFO")
        if not said.client_id:
            raise NegotiationRefused(
                "INFO", "", fix=f"{self.server} is no port for clients of a nats-server: name that, 4222 as a rule"
            )
        self.info = said
        if (way.tls or said.tls_required) and not way.tls_first:
            self._start_tls_behind_info(way)
        self._send(wire.connect(_fields(way.login) | credentials.signed(way.secrets, said.nonce)) + wire.PING)
        while (answer := self._next()) is not wire.Word.PONG:
            if isinstance(answer, wire.Err):
                raise refusal(answer.words)
            if answer is wire.Word.PING:
                self._send(wire.PONG)
            elif isinstance(answer, wire.Msg):
                raise ProtocolError(f"{self.server} sent a message before anything was subscribed to: it is no nats-server")

    def _next(self) -> wire.ClientEvent:
        while not self.events:
            try:
                self.events = self.decoder.feed(self._receive())
            except ProtocolError as error:
                raise ProtocolError(f"{self.server}: {error}") from None
        return self.events.pop(0)

    def _start_tls_behind_info(self, way: Way) -> None:
        """INFO is in clear, and nothing was said yet of who we are."""
        if not (self.info.tls_required or self.info.tls_available):
            raise TlsFailed(f"nats-server {self.server} speaks no TLS, which was asked for: configure tls {{}} there")
        self._start_tls(way)

    def _start_tls(self, way: Way) -> None:
        tls = Tls(credentials.tls_context(way.secrets), credentials.server_name(self.server))
        self._stream = shake_hands(self._open, tls, f"nats-server {self.server}")
        if early := tls.decode(b""):  # INFO, where TLS came first: it may stand right behind the server's last word of TLS
            self.events += self.decoder.feed(early)

    @property
    def _open(self) -> Socket:
        assert self._stream is not None
        return self._stream

    def _send(self, data: bytes) -> None:
        send_all(self._open, data)

    def _receive(self) -> bytes:
        return receive(self._open, f"nats-server {self.server}")

    def close(self) -> None:
        """Unless it was released."""
        if self._stream is not None:
            self._stream.close()

    def release(self) -> Socket:
        """The stream itself: the caller closes it."""
        stream, self._stream = self._stream, None
        assert stream is not None
        return stream


def refusal(words: str) -> BrokerError:
    """A -ERR that ends a connection, as an error of the class that tells what can be done."""
    start = words.lower()
    if start.startswith(("authorization violation", "user authentication", "account authentication")):
        fix = (
            "the user, password or token before the @ of the broker URL is missing or wrong, or what is in nkey_file= or "
            "creds_file="
        )
        return AccessDenied(words, fix=fix)
    if start.startswith(("secure connection", "tls")):
        return NegotiationRefused(words)
    return BrokerError(words)


@contextmanager
def dial(server: str, way: Way = _PLAIN, timeout: float = CONNECT_TIMEOUT) -> Iterator[Line]:
    """A Line to ``server``, closed at the end unless it was released. ``timeout``: seconds for all that is done with it.

    Raises BrokerUnreachable (refused, unknown host, silent), AccessDenied, NegotiationRefused, BrokerError, ProtocolError.
    """
    limit = gevent.Timeout(timeout)
    line: Line | None = None
    try:
        with limit:
            line = Line(server, _connected(server))
            line.enter(way)
            yield line
    except gevent.Timeout as error:
        if error is not limit:
            raise
        hint = "" if way.tls_first or (line and line.info.version) else "; one with handshake_first needs tls_first=true"
        raise BrokerUnreachable(f"nats-server {server} did not answer within {timeout:g} s{hint}") from None
    except ssl.SSLError as error:
        raise credentials.refusal(server, error) from error
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA refuses
        raise BrokerUnreachable(f"nats-server {server} cannot be reached: {error}") from error
    finally:
        if line is not None:
            line.close()


def _connected(server: str) -> _socket.socket:
    """The socket itself, non-blocking, out of gevent's hands."""
    sock = gsocket.create_connection(split_address(server))
    for level, option, value in _KEEPALIVE:
        sock.setsockopt(level, option, value)
    bare = _socket.socket(fileno=sock.detach())
    bare.setblocking(False)
    return bare


def _fields(login: Login) -> dict[str, object]:
    name, _, version = AGENT.partition("/")
    fields: dict[str, object] = {
        "verbose": False, "pedantic": False, "lang": "python-" + name, "version": version, "protocol": 1, "headers": True,
        "no_responders": True, "name": AGENT,
    }  # fmt: skip
    wanted = {"user": login.user, "pass": login.password, "auth_token": login.token}
    return fields | {name: value for name, value in wanted.items() if value}
