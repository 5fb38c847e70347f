"""Dials a nats-server and introduces itself (INFO, CONNECT, PING, PONG): what sessions, publishers and probes have in common.

Source: the client protocol of the NATS documentation, INFO and CONNECT; nats-server's client.go for its errors.
"""

from __future__ import annotations

import _socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from framework.errors import AccessDenied, BrokerError, NegotiationRefused, ProtocolError, TlsFailed
from framework.transports.nats import credentials, wire
from framework.transports.nats.opening import Opening, connected, explained
from framework.transports.nats.urls import Login, Secrets
from framework.transports.stream import Tls
from framework.version import AGENT

CONNECT_TIMEOUT = 5.0
_NOBODY, _NO_FILES = Login(), Secrets()


@dataclass(frozen=True, slots=True)
class Way:
    """How a server is entered. ``tls``: or not at all; ``tls_first``: before the server has said anything; ``tls_name``: whose
    certificate it must have, where that is not said by its address."""

    login: Login = _NOBODY
    tls: bool = False
    tls_first: bool = False
    tls_name: str = ""
    secrets: Secrets = _NO_FILES


_PLAIN = Way()


class Line(Opening[wire.ClientEvent]):
    """A dialled socket whose server has accepted us."""

    def __init__(self, server: str, sock: _socket.socket) -> None:
        super().__init__(server, sock, wire.ClientDecoder())

    def enter(self, way: Way) -> None:
        """Raises AccessDenied, NegotiationRefused, TlsFailed, BrokerError, BrokerUnreachable, ProtocolError, BadSetting."""
        if way.tls_first:
            self._start_tls(way)
        said = self.next()
        if not isinstance(said, wire.Info):
            raise ProtocolError(f"{self.server} began with {said!r:.80}, and a nats-server begins with INFO")
        if not said.client_id:
            raise NegotiationRefused(
                "INFO", "", fix=f"{self.server} is no port for clients of a nats-server: name that, 4222 as a rule"
            )
        self.info = said
        if (way.tls or said.tls_required) and not way.tls_first:
            self._start_tls_behind_info(way)
        self.send(wire.connect(_fields(way.login) | credentials.signed(way.secrets, said.nonce)) + wire.PING)
        while (answer := self.next()) is not wire.Word.PONG:
            if isinstance(answer, wire.Err):
                raise refusal(answer.words)
            if answer is wire.Word.PING:
                self.send(wire.PONG)
            elif isinstance(answer, wire.Msg):
                raise ProtocolError(f"{self.server} sent a message before anything was subscribed to: it is no nats-server")

    def _start_tls_behind_info(self, way: Way) -> None:
        """INFO is in clear, and nothing was said yet of who we are."""
        if not (self.info.tls_required or self.info.tls_available):
            raise TlsFailed(f"nats-server {self.server} speaks no TLS, which was asked for: configure tls {{}} there")
        self._start_tls(way)

    def _start_tls(self, way: Way) -> None:
        name = way.tls_name or credentials.server_name(self.server)
        self.start_tls(Tls(credentials.tls_context(way.secrets), name))


_LIMITS = [
    (
        "maximum subscriptions",
        "raise max_subscriptions of the server, or subs of the account or the user: a handler needs one for each pull that waits "
        "and one more",
    ),
    ("connections exceeded", "raise max_connections of the server, or conn of the account or the user"),
]
"""What a -ERR has in it, and which limit that is."""


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
    return BrokerError(words, fix=next((fix for limit, fix in _LIMITS if limit in start), ""))


@contextmanager
def dial(server: str, way: Way = _PLAIN, timeout: float = CONNECT_TIMEOUT) -> Iterator[Line]:
    """A Line to ``server``, closed at the end unless it was released. ``timeout``: seconds for all that is done with it.

    Raises BrokerUnreachable (refused, unknown host, silent), AccessDenied, NegotiationRefused, BrokerError, ProtocolError.
    """
    line: Line | None = None

    def hint() -> str:
        return "" if way.tls_first or (line and line.info.version) else "; one with handshake_first needs tls_first=true"

    with explained(server, timeout, hint):
        try:
            line = Line(server, connected(server))
            line.enter(way)
            yield line
        finally:
            if line is not None:
                line.close()


def _fields(login: Login) -> dict[str, object]:
    name, _, version = AGENT.partition("/")
    fields: dict[str, object] = {
        "verbose": False, "pedantic": False, "lang": "python-" + name, "version": version, "protocol": 1, "headers": True,
        "no_responders": True, "name": AGENT,
    }  # fmt: skip
    wanted = {"user": login.user, "pass": login.password, "auth_token": login.token}
    return fields | {name: value for name, value in wanted.items() if value}
