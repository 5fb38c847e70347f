"""Introduces two servers to one another (INFO, CONNECT, PING, PONG), whoever dialled, with TLS from the first byte where that is
asked for.

Source: the cluster protocol of the NATS documentation; nats-server's route.go; what 2.9 and 2.15 were seen to do.
"""

from __future__ import annotations

import _socket
import hmac
import random
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import gevent

from framework.errors import AccessDenied, BrokerError, BrokerUnreachable, NegotiationRefused, ProtocolError
from framework.transports.nats import route_wire, wire
from framework.transports.nats.credentials import server_name
from framework.transports.nats.opening import Opening, bare, connected, explained
from framework.transports.nats.urls import Login
from framework.transports.stream import Closed, Tls

T = TypeVar("T")

TIMEOUT = 5.0
"""Seconds for all of an introduction."""
SILENCE = 1.5
"""Seconds after which a server that says nothing waits for TLS: else it speaks first. After 2 s it closes."""
_STRANGERS = 65536
"""Bytes of a message that are taken from somebody who has not shown a password yet."""
_LIKE = "2.9.10"
"""The server as which we behave: one connection for all accounts, no compression."""


@dataclass(frozen=True, slots=True)
class Card:
    """Who we are, for one introduction."""

    server_id: str
    server_name: str
    cluster: str
    dynamic: bool
    """The cluster has no name but the one that its servers made up."""
    host: str
    port: int
    """Where we can be dialled; 0: nowhere."""
    login: Login
    tls: bool
    gossip: bool
    """Others are to be told of us."""
    max_payload: int = 1024 * 1024

    def info(self) -> bytes:
        fields: dict[str, object] = {
            "server_id": self.server_id, "server_name": self.server_name, "version": _LIKE, "proto": 1, "go": "",
            "host": self.host, "port": self.port, "headers": True, "max_payload": self.max_payload, "cluster": self.cluster,
        }  # fmt: skip
        if self.dynamic:
            fields["cluster_dynamic"] = True
        if self.login.user:  # or servers do not say who they are when they dial us
            fields["auth_required"] = True
        if self.tls:
            fields |= {"tls_required": True, "tls_verify": True}
        if not self.gossip:
            fields["gossip_mode"] = 1
        return wire.info(fields)

    def connect(self) -> bytes:
        fields: dict[str, object] = {
            "echo": True, "verbose": False, "pedantic": False, "tls_required": self.tls, "headers": True,
            "name": self.server_id, "cluster": self.cluster,
        }  # fmt: skip
        if self.dynamic:
            fields["cluster_dynamic"] = True
        if self.login.user:
            fields |= {"user": self.login.user, "pass": self.login.password}
        return wire.connect(fields)


class Line(Opening[route_wire.RouteEvent]):
    """A socket to another server."""

    def __init__(self, server: str, sock: _socket.socket) -> None:
        super().__init__(server, sock, route_wire.RouteDecoder())

    # --- the side that dialled -----------------------------------------------------------------------------

    def read_info(self, tls: ssl.SSLContext | None) -> wire.Info:
        """What the server says first. Raises NegotiationRefused, BrokerUnreachable, ProtocolError."""
        if tls is not None:
            self.start_tls(Tls(tls, server_name(self.server)))
        said = self._first(speaks_tls=tls is not None)
        if not isinstance(said, wire.Info):
            raise ProtocolError(f"{self.server} began with {_word(said)}, and a nats-server begins with INFO")
        if said.client_id or not said.server_id:
            fix = f"{self.server} is no port for routes: name that of the server's cluster {{}} block, 6222 as a rule"
            raise NegotiationRefused("INFO", "", fix=fix)
        self.info = said
        return said

    def _first(self, *, speaks_tls: bool) -> route_wire.RouteEvent:
        limit = gevent.Timeout(SILENCE)
        try:
            with limit:
                return self.next()
        except gevent.Timeout as error:
            if error is not limit:
                raise
            hint = "" if speaks_tls else ", as one does that speaks TLS: give tls_ca=, tls_cert=, tls_key="
            raise BrokerUnreachable(f"nats-server {self.server} waits without a word{hint}") from None  # or is slow: no refusal

    def introduce(self, card: Card, interests: bytes) -> None:
        """Say who we are and what we want, and wait until the server has taken it. Raises AccessDenied, NegotiationRefused,
        BrokerError, Renamed, BrokerUnreachable, ProtocolError."""
        if self.info.auth_required and not card.login.user:
            raise AccessDenied("authorization", fix=f"{self.server} wants user:password of its cluster {{ authorization }}")
        self.send(card.connect() + card.info() + interests + wire.PING)
        held: list[route_wire.RouteEvent] = []
        try:
            while (answer := self.next()) is not wire.Word.PONG:
                if isinstance(answer, wire.Err):
                    if card.dynamic and _is_about_the_name(answer.words):
                        raise Renamed(f"nats-server {self.server}: {answer.words}")
                    raise refusal(answer.words)
                if answer is wire.Word.PING:
                    self.send(wire.PONG)
                else:
                    held.append(answer)
        except (OSError, Closed) as error:
            if isinstance(error, ssl.SSLError):
                raise
            raise _unexplained(self.server, self.info, card) from error
        self.events[:0] = held

    # --- the side that was dialled -------------------------------------------------------------------------

    def greeting(self, tls: ssl.SSLContext | None, timeout: float) -> route_wire.Connect | None:
        """What a server that has dialled says at once; None: it has not within ``timeout`` seconds. Raises as ``admit``."""
        if tls is not None:
            self.start_tls(Tls(tls, None, server_side=True))
        with gevent.Timeout(timeout, False):
            return self._connect()
        return None

    def _connect(self) -> route_wire.Connect:
        said = self.next()
        if not isinstance(said, route_wire.Connect):
            raise ProtocolError(f"{self.server} began with {_word(said)}, and a server that dials begins with CONNECT")
        return said

    def admit(self, card: Card, greeting: route_wire.Connect | None) -> wire.Info:
        """Have the server say who it is, behind its ``greeting``. Raises AccessDenied, NegotiationRefused, BrokerUnreachable,
        ProtocolError."""
        self.send(card.info())  # 2.15 says nothing more of itself before that
        self._check(greeting or self._connect(), card)
        while not isinstance(said := self.next(), wire.Info):
            if said is wire.Word.PING:
                self.send(wire.PONG)
            else:
                raise ProtocolError(f"{self.server} said {_word(said)} before its INFO")
        self.info = said
        self.decoder.max_payload = wire.MAX_PAYLOAD
        return said

    def _check(self, said: route_wire.Connect, card: Card) -> None:
        wanted = card.login
        given = (said.user or "", said.password or "")
        if wanted.user and not _same(given, (wanted.user, wanted.password)):
            self._refuse("Authorization Violation")
            raise AccessDenied("authorization", fix=f"{self.server} dialled without the user and password of the cluster")
        if said.cluster != card.cluster:
            self._refuse(f'Rejecting connection, cluster name "{said.cluster}" does not match "{card.cluster}"')
            raise NegotiationRefused("cluster", said.cluster)

    def _refuse(self, words: str) -> None:
        with suppress(OSError):
            self.send(b"-ERR '%b'\r\n" % words.encode())


def _word(said: route_wire.RouteEvent) -> str:
    """What was said, without what is in it: a CONNECT has a password."""
    return said.name if isinstance(said, wire.Word) else type(said).__name__.upper()


class Renamed(BrokerUnreachable):
    """A cluster without a name has another made-up one than a moment ago: its servers have met, and agreed on one."""


class Unexplained(BrokerUnreachable):
    """A server ended an introduction without a word: it may know us already."""


class Unanswered(AccessDenied):
    """As ``Unexplained``, of one that wants a password: it does not take ours, or was stopped meanwhile."""


_TRIES = 4
"""So often a server is dialled that ends introductions so."""
_JITTER = 0.1
"""Seconds between two of these dials, at most."""


def persistent(introduced: Callable[[], T], renew: Callable[[], object] = object) -> T:
    """``introduced()``, called again where a server may take us by then, after ``renew()``: with its cluster's new name, with
    another id, or because it was being stopped. Raises what the last call raises."""
    for _ in range(_TRIES - 1):
        with suppress(Renamed, Unexplained, Unanswered):
            return introduced()
        renew()
        gevent.sleep(_JITTER * random.random())
    return introduced()


def _unexplained(server: str, info: wire.Info, card: Card) -> Exception:
    """2.9 closes before its -ERR can be read, and nobody says what of a name or an id is taken."""
    if info.auth_required:
        fix = f"{server} does not take this user and password of its cluster, it seems"
        return Unanswered("closed without a word", fix=fix)
    if info.server_name == card.server_name:
        fix = f"{server} is called {info.server_name}, as we are, and takes nobody of its own name: give it another server_name"
        return NegotiationRefused("closed without a word", "", fix=fix)
    return Unexplained(
        f"nats-server {server} closed the connection without a word: its cluster has another name (cluster=), or it has a route "
        "to a server with our id already"
    )


def check_name(info: wire.Info, cluster: str, server: str) -> None:
    """Raises NegotiationRefused for another ``cluster`` than was asked for; empty: any."""
    if cluster and info.cluster != cluster:
        fix = f"{server} is of cluster {info.cluster!r}: leave cluster={cluster} out of the broker URL, or name that"
        raise NegotiationRefused("cluster", "", fix=fix)


def refusal(words: str) -> BrokerError:
    """A -ERR that ends an introduction, as an error of the class that tells what can be done."""
    start = words.lower()
    if start.startswith("authorization violation"):
        fix = "the user and password before the @ of the broker URL are missing, or not those of cluster { authorization }"
        return AccessDenied(words, fix=fix)
    if _is_about_the_name(words):
        return NegotiationRefused(words, "", fix="leave cluster= out of the broker URL, or name the server's")
    if start.startswith(("secure connection", "tls", "attempted to connect")):
        return NegotiationRefused(words)
    return BrokerError(words)


def _is_about_the_name(words: str) -> bool:
    return "cluster name" in words.lower()


def _same(given: tuple[str, str], wanted: tuple[str, str]) -> bool:
    return hmac.compare_digest("\0".join(given).encode(), "\0".join(wanted).encode())


@contextmanager
def dialled(server: str, timeout: float = TIMEOUT) -> Iterator[Line]:
    """A Line to ``server``, closed at the end unless it was released. ``timeout``: seconds for all that is done with it.

    Raises BrokerUnreachable (refused, unknown host, silent), and what is done with it."""
    line: Line | None = None
    with explained(server, timeout):
        try:
            line = Line(server, connected(server))
            yield line
        finally:
            if line is not None:
                line.close()


@contextmanager
def accepted(server: str, sock: socket.socket, timeout: float = TIMEOUT) -> Iterator[Line]:
    """As ``dialled``, for a socket that was accepted from ``server``."""
    line = Line(server, bare(sock))
    line.decoder.max_payload = _STRANGERS
    with explained(server, timeout):
        try:
            yield line
        finally:
            line.close()
