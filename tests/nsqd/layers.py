"""A client that speaks through TLS, snappy and deflate, for tests that compare a real nsqd with ours."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import snappy

from framework.testing.certificates import Pair
from framework.testing.servers import Server

VARIES = ("remote_address", "connect_ts", "tls_cipher_suite")
"""Go and OpenSSL prefer different ciphers."""


Servers = Callable[..., tuple[Server, Server]]


class Session:
    """A client that can speak through the layers that it asks for."""

    def __init__(self, server: Server) -> None:
        self.sock: socket.socket = socket.create_connection(("127.0.0.1", server.tcp_port), 10)
        self.sock.sendall(b"  V2")
        self._deflate: Any = None
        self._inflate: Any = None
        self._snappy: Any = None
        self._buffer = b""

    def send(self, data: bytes) -> None:
        if self._deflate:
            data = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        elif self._snappy:
            data = self._snappy[0].compress(data)
        try:
            self.sock.sendall(data)
        except OSError:
            pass  # ended by the server: what it said before is read all the same

    def frame(self) -> tuple[int, bytes] | None:
        """The next one that is no heartbeat; None at the end."""
        while True:
            head = self._take(4)
            body = head and self._take(int.from_bytes(head, "big"))
            if not body:
                return None
            if body[4:] != b"_heartbeat_":
                return int.from_bytes(body[:4], "big"), body[4:]

    def _take(self, count: int) -> bytes | None:
        while len(self._buffer) < count:
            try:
                data = self.sock.recv(1 << 16)
            except TimeoutError:
                raise
            except OSError:
                data = b""
            if not data:
                return None
            self._buffer += self._decoded(data)
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _decoded(self, data: bytes) -> bytes:
        if self._inflate:
            return self._inflate.decompress(data)
        return self._snappy[1].decompress(data) if self._snappy else data

    def identify(self, **wishes: Any) -> dict[str, Any] | bytes:
        """What the server grants, or its error."""
        body = json.dumps({"feature_negotiation": True, "client_id": "me", "hostname": "box"} | wishes).encode()
        self.send(b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        frame = self.frame()
        assert frame is not None
        return json.loads(frame[1]) if frame[0] == 0 else frame[1]

    def secure(self, cert: Pair | None = None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = version
        if cert is not None:
            context.load_cert_chain(cert.cert, cert.key)
        self.sock = context.wrap_socket(self.sock)

    def compress(self, granted: dict[str, Any]) -> None:
        if granted["deflate"]:
            self._deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        else:
            self._snappy = snappy.StreamCompressor(), snappy.StreamDecompressor()
        early, self._buffer = self._buffer, b""  # the OK may have come with the answer
        self._buffer = self._decoded(early) if early else b""

    def end(self) -> list[tuple[int, bytes]]:
        """All frames up to the end of the connection."""
        found = []
        while (frame := self.frame()) is not None:
            found.append(frame)
        return found

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


def wait_for(what: Callable[[], Any], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)
