"""Dials an nsqd and negotiates (IDENTIFY, TLS, compression, AUTH): what consumers, producers and probes have in common.

It blocks its greenlet and ends with a non-blocking stream: what follows belongs to a watcher on the hub.
Source: TCP protocol specification, IDENTIFY, AUTH and SUB; nsqd's protocol_v2.go.
"""

from __future__ import annotations

import _socket
import math
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from time import monotonic

import gevent
import msgspec
from gevent import socket as gsocket

from framework.decoding import UNREADABLE
from framework.errors import BrokerError, BrokerUnreachable, ProtocolError, TlsFailed, cannot_be_reached
from framework.observe import hublog
from framework.transports.contract import Limits
from framework.transports.nsq import credentials, wire
from framework.transports.nsq.stream import Codec, Deflate, Snappy, Socket, Stream, Tls
from framework.transports.nsq.urls import Options, split_address
from framework.transports.stream import receive, send_all, shake_hands
from framework.version import AGENT

log = hublog.get(__name__)

CONNECT_TIMEOUT = 5.0
_DEFAULTS = Options()


class Identity(msgspec.Struct):
    """nsqd's answer to IDENTIFY with feature_negotiation. Times in milliseconds, as on the wire."""

    version: str
    max_rdy_count: int
    msg_timeout: int
    max_msg_timeout: int
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    auth_required: bool = False

    def limits(self, longest_delay: float, distance: float = math.inf) -> Limits:
        """With those that IDENTIFY does not tell, in seconds."""
        return Limits(
            lease=self.msg_timeout / 1e3, max_lease=self.max_msg_timeout / 1e3, max_grant=self.max_rdy_count,
            max_requeue=longest_delay, max_defer=longest_delay, distance=distance,
        )  # fmt: skip


_identity = msgspec.json.Decoder(Identity)


class Line:
    """A dialed, negotiated stream: what a Connection, a producer's PublishLink or a probe is made from."""

    def __init__(self, node: str, sock: _socket.socket) -> None:
        self.node = node
        self.decoder = wire.Decoder()
        self.identity = Identity("", 0, 0, 0)
        self.quickest = math.inf
        """Seconds until the quickest answer: nsqd is no farther than that."""
        self.events: list[bytes | BrokerError] = []
        """After ``release``: frames that came with or after the last answer, for the next reader."""
        self._stream: Socket | None = sock
        self._rest = b""  # read, and not yet taken: perhaps of the layer that comes next

    def ask(self, command: bytes = b"") -> bytes:
        """Send ``command`` and return its response; heartbeats in between are answered."""
        asked = monotonic()
        self._send(command)
        while (answer := self._next()) == wire.HEARTBEAT:
            self._send(wire.NOP)
        if command:
            self.quickest = min(self.quickest, monotonic() - asked)
        if isinstance(answer, BrokerError):
            raise answer
        return answer

    def expect_ok(self, what: str, command: bytes = b"") -> None:
        answer = self.ask(command)
        if answer != wire.OK:
            raise ProtocolError(f"nsqd {self.node} answered {what} with {answer[:80]!r}")

    def check_admitted(self) -> None:
        """An nsqd that takes TLS only says so at the first command after IDENTIFY, and not at that. Raises NegotiationRefused."""
        self.expect_ok("IDENTIFY", wire.NOP + wire.identify({}))

    def negotiate(self, options: Options) -> None:
        """IDENTIFY, and what its answer leads to. Nothing is sent ahead: each layer begins with nsqd's OK on it."""
        self.identity = self._identify(options)
        if options.tls:
            self._start_tls(options)
        if options.snappy and self._granted("snappy", self.identity.snappy):
            self._add(Snappy(), "snappy")
        elif options.deflate and self._granted("deflate", self.identity.deflate):
            self._add(Deflate(options.deflate_level), "deflate")
        if self.identity.auth_required:
            self._authenticate(credentials.auth_secret(options))

    def _identify(self, options: Options) -> Identity:
        answer = self.ask(wire.MAGIC + wire.identify(_fields(options)))
        try:
            return _identity.decode(answer)
        except UNREADABLE as error:
            raise ProtocolError(f"nsqd {self.node} answered IDENTIFY with {answer[:80]!r}: {error}") from None

    def _granted(self, what: str, granted: bool) -> bool:
        if not granted:
            log.info("nsqd %s grants no %s: it goes on uncompressed", self.node, what)
        return granted

    def _start_tls(self, options: Options) -> None:
        if not self.identity.tls_v1:
            raise TlsFailed(f"nsqd {self.node} grants no TLS, which was asked for: start it with --tls-cert and --tls-key")
        tls = Tls(credentials.tls_context(options), credentials.server_name(options, self.node))
        early, self._rest = self._rest, b""
        self._begin(shake_hands(self._open, tls, f"nsqd {self.node}", early), tls, "TLS")

    def _add(self, codec: Codec, what: str) -> None:
        self._begin(Stream(self._open, codec), codec, what)

    def _begin(self, stream: Stream, codec: Codec, what: str) -> None:
        """nsqd's OK is the first that comes through a new layer."""
        self._stream = stream
        self._rest = codec.decode(self._rest)
        self.expect_ok(what)

    def _authenticate(self, secret: bytes) -> None:
        if not secret:
            raise wire.parse_error(b"E_AUTH_FIRST AUTH required")
        answer = self.ask(wire.auth(secret))
        log.debug("nsqd %s answered AUTH with %r", self.node, answer[:200])

    @property
    def _open(self) -> Socket:
        assert self._stream is not None
        return self._stream

    def _send(self, data: bytes) -> None:
        send_all(self._open, data)

    def _receive(self) -> bytes:
        return receive(self._open, f"nsqd {self.node}")

    def _next(self) -> bytes | BrokerError:
        try:
            while (taken := wire.take_frame(self._rest)) is None:
                self._rest += self._receive()
        except ProtocolError as error:
            if self._rest.startswith(b"HTTP/"):
                raise ProtocolError(f"{self.node} answers HTTP: name nsqd's TCP port, 4150 unless told otherwise") from None
            raise ProtocolError(f"{self.node}: {error}") from None
        frame, self._rest = taken
        return frame

    def release(self) -> Socket:
        """The stream itself: the caller closes it."""
        stream, self._stream = self._stream, None
        assert stream is not None
        messages, self.events = self.decoder.feed(self._rest)
        if messages:
            stream.close()
            raise ProtocolError(f"{self.node}: it sent a message before it was asked for any")
        return stream

    def close(self) -> None:
        """Unless it was released."""
        if self._stream is not None:
            self._stream.close()


@contextmanager
def dial(node: str, options: Options = _DEFAULTS, *, timeout: float = CONNECT_TIMEOUT) -> Iterator[Line]:
    """A Line to ``node`` (``host:port``, or the path of a Unix socket), negotiated; closed at the end unless it was released.
    Times in seconds.

    Raises BrokerUnreachable (refused, unknown host, silent for ``timeout``), TlsFailed, BrokerError, ProtocolError, BadSetting.
    """
    limit = gevent.Timeout(timeout)
    line: Line | None = None
    try:
        with limit:
            line = Line(node, _connected(node))
            line.negotiate(options)
            yield line
    except gevent.Timeout as error:
        if error is not limit:
            raise
        raise BrokerUnreachable(f"nsqd {node} did not answer within {timeout:.3g} s") from None
    except ssl.SSLError as error:
        raise credentials.refusal(f"nsqd {node}", error) from error
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA refuses
        raise cannot_be_reached(f"nsqd {node}", error) from error
    finally:
        if line is not None:
            line.close()


def _connected(node: str) -> _socket.socket:
    """The socket itself, non-blocking, out of gevent's hands."""
    if node.startswith("/"):
        sock = gsocket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(node)
        except BaseException:
            sock.close()
            raise
    else:
        sock = gsocket.create_connection(split_address(node))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bare = _socket.socket(fileno=sock.detach())
    bare.setblocking(False)
    return bare


def _fields(options: Options) -> dict[str, object]:
    """IDENTIFY's body. What is left out is nsqd's own default."""
    fields: dict[str, object] = {
        "client_id": options.client_id or f"{_hostname().partition('.')[0]}:{os.getpid()}",
        "hostname": options.hostname or _hostname(),
        "user_agent": options.user_agent or AGENT,
        "feature_negotiation": True,
        "heartbeat_interval": wire.milliseconds(options.heartbeat),
        "output_buffer_timeout": wire.milliseconds(options.output_buffer_timeout),
        "tls_v1": options.tls,
        "snappy": options.snappy,
        "deflate": options.deflate,
    }
    wanted = {
        "msg_timeout": wire.milliseconds(options.msg_timeout),
        "output_buffer_size": options.output_buffer_size,
        "sample_rate": options.sample_rate,
        "deflate_level": options.deflate_level if options.deflate else 0,
        "topology_region": options.topology_region,
        "topology_zone": options.topology_zone,
    }
    return fields | {name: value for name, value in wanted.items() if value}


@cache
def _hostname() -> str:
    return socket.gethostname()
