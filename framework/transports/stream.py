"""TLS, or another layer, between a connection and its socket: what looks like a non-blocking socket, and how a greenlet waits
for one while a connection is set up. It knows no frames.

A connection that negotiated nothing keeps its bare socket and pays nothing for this. Not locked: whoever shares a stream with
another native thread holds one lock around every ``recv`` and ``send``.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any, Protocol

from gevent import socket as gsocket

from framework.errors import BrokerUnreachable

CHUNK = 128 * 1024
"""Bytes that are encoded at once: more would only wait in memory for the socket to take them."""
RECV_SIZE = 65536
"""Bytes that are read at a time."""


class Socket(Protocol):
    """What a connection needs of its socket; a non-blocking ``_socket.socket`` is one."""

    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: memoryview | bytes, /) -> int: ...
    def fileno(self) -> int: ...
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class Codec(Protocol):
    """One layer, with the state of both its directions. No I/O."""

    def encode(self, data: memoryview | bytes) -> bytes:
        """What the peer needs to decode all of ``data``, without waiting for more."""

    def decode(self, data: bytes) -> bytes:
        """All that can be decoded by now. Raises ProtocolError, or OSError (TLS) for what cannot be."""

    def farewell(self) -> bytes:
        """What to send before the socket is closed."""


class Stream:
    """``codec`` over ``below``, a socket or another Stream; itself a Socket.

    Nothing that could be decoded stays inside after ``recv``, so a watcher on the socket misses nothing.
    """

    def __init__(self, below: Socket, codec: Codec) -> None:
        self._below = below
        self._codec = codec
        self._encoded = memoryview(b"")
        self._ended = False
        self.begun = 0
        """How many bytes of what ``send`` was given, and has not yet said to have sent, may have reached the peer."""

    def recv(self, size: int) -> bytes:
        """All that ``size`` bytes of the socket hold when decoded; b"" at the end of the stream.

        Raises BlockingIOError when nothing can be decoded yet, ProtocolError, OSError."""
        while not self._ended:
            data = self._below.recv(size)
            if not data:
                break
            try:
                plain = self._codec.decode(data)
            except ssl.SSLZeroReturnError:
                self._ended = True
                break
            if plain:
                return plain
        return b""

    def send(self, data: memoryview | bytes) -> int:
        """How many bytes of ``data`` have gone out whole, encoded.

        Raises BlockingIOError when none have, and OSError. The next call must be given the rest of the same ``data``, with
        or without more behind it: what was begun is encoded already, and as in ``SSL_write`` cannot be taken back."""
        sent = 0
        while sent < len(data):
            if not self.begun:
                self.begun = min(CHUNK, len(data) - sent)
                self._encoded = memoryview(self._codec.encode(data[sent : sent + self.begun]))
            try:
                self._send_encoded()
            except BlockingIOError:
                if sent:
                    break
                raise
            sent += self.begun
            self.begun = 0
        return sent

    def _send_encoded(self) -> None:
        while self._encoded:
            self._encoded = self._encoded[self._below.send(self._encoded) :]

    def fileno(self) -> int:
        return self._below.fileno()

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Nothing: such options (SO_RCVLOWAT) count bytes of the wire, of which these here say nothing."""

    def shutdown(self, how: int) -> None:
        self._below.shutdown(how)

    def close(self) -> None:
        if not self.begun:  # or it would stand in the middle of a record
            try:
                self._encoded = memoryview(self._codec.farewell())
                self._send_encoded()
            except OSError:
                pass
        self._below.close()


def begun(stream: Socket) -> int:
    """How many bytes of a send that was refused may have reached the peer nevertheless: none of a bare socket's."""
    return stream.begun if isinstance(stream, Stream) else 0


class Tls:
    """TLS over two buffers: the socket stays ours, which a watcher, gevent's patches and other native threads require."""

    def __init__(self, context: ssl.SSLContext, server_name: str | None, *, server_side: bool = False) -> None:
        """``server_name``: the name that a client expects in the certificate; None on the side of the server."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side, server_hostname=server_name)

    def shake(self, data: bytes) -> tuple[bool, bytes]:
        """One step of the handshake with ``data`` from the peer: whether it is done, and what to send.

        Raises ssl.SSLError; what to send is then in ``farewell``."""
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False, self._outgoing.read()
        return True, self._outgoing.read()

    @property
    def version(self) -> str:
        """``TLSv1.3``, once the handshake is done."""
        return self._tls.version() or ""

    @property
    def cipher(self) -> str:
        """As OpenSSL calls it."""
        cipher = self._tls.cipher()
        return cipher[0] if cipher else ""

    @property
    def peer_name(self) -> str:
        """The common name of the peer's certificate; empty without one."""
        subject: Any = (self._tls.getpeercert() or {}).get("subject", ())
        return next((value for field in subject for name, value in field if name == "commonName"), "")

    def encode(self, data: memoryview | bytes) -> bytes:
        while data:
            data = data[self._tls.write(data) :]
        return self._outgoing.read()

    def decode(self, data: bytes) -> bytes:
        self._incoming.write(data)
        parts: list[bytes] = []
        try:
            while part := self._tls.read(RECV_SIZE):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            if not parts:
                raise
        return b"".join(parts)

    def farewell(self) -> bytes:
        try:
            self._tls.unwrap()
        except ssl.SSLError:  # it wants to read the peer's, for which nobody waits
            pass
        return self._outgoing.read()


# -- in a greenlet that waits: while a connection is set up


def send_all(stream: Socket, data: bytes) -> None:
    """Blocks until the socket has taken all. Raises OSError."""
    left = memoryview(data)
    while left:
        try:
            left = left[stream.send(left) :]
        except BlockingIOError:
            gsocket.wait_write(stream.fileno())


class Closed(BrokerUnreachable):
    """The peer ended the stream, in the middle of an introduction."""


def receive(stream: Socket, peer: str) -> bytes:
    """Blocks until there is something. Raises Closed, which names ``peer``, at the end of the stream; OSError."""
    while True:
        try:
            data = stream.recv(RECV_SIZE)
        except BlockingIOError:
            gsocket.wait_read(stream.fileno())
        else:
            break
    if not data:
        raise Closed(f"{peer} closed the connection while it was being set up")
    return data


def shake_hands(stream: Socket, tls: Tls, peer: str, early: bytes = b"") -> Stream:
    """``tls`` over ``stream``; blocks. ``early``: what was read of the peer's part already. Raises as ``receive`` does, and
    ssl.SSLError when the peer has been sent the alert that tells its log why."""
    try:
        done, out = tls.shake(early)
        while not done:
            send_all(stream, out)
            done, out = tls.shake(receive(stream, peer))
        send_all(stream, out)
    except ssl.SSLError:
        with suppress(OSError):
            send_all(stream, tls.farewell())
        raise
    return Stream(stream, tls)
