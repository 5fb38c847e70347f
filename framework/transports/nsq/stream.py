"""NSQ's compressions as layers of a stream. They know no frames.

Source: IDENTIFY in the TCP protocol specification; nsqd's client_v2.go for how each layer is flushed.
"""

from __future__ import annotations

import zlib

from framework.errors import ProtocolError
from framework.transports.stream import CHUNK, Codec, Socket, Stream, Tls, begun

__all__ = ["CHUNK", "Codec", "Deflate", "Snappy", "Socket", "Stream", "Tls", "begun"]

_SNAPPY_HEAD = b"\xff\x06\x00\x00sNaPpY"


class Deflate:
    """Raw deflate, without zlib's header, flushed at each write."""

    def __init__(self, level: int) -> None:
        self._out = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._in = zlib.decompressobj(-zlib.MAX_WBITS)

    def encode(self, data: memoryview | bytes) -> bytes:
        return self._out.compress(data) + self._out.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        try:
            plain = self._in.decompress(data)
        except zlib.error as error:
            raise _garbage("deflate", error, data) from None
        if self._in.eof:
            raise _garbage("deflate", "it ended", data)
        return plain

    def farewell(self) -> bytes:
        return b""


class Snappy:
    """Snappy's framing format."""

    def __init__(self) -> None:
        import snappy  # noqa: PLC0415 - only a client that asks for it needs it

        self._out = snappy.StreamCompressor()
        self._in = snappy.StreamDecompressor()
        self._head = b""

    def encode(self, data: memoryview | bytes) -> bytes:
        return bytes(self._out.compress(bytes(data)))

    def decode(self, data: bytes) -> bytes:
        if len(self._head) < len(_SNAPPY_HEAD):
            self._check_head(data)
        try:
            return bytes(self._in.decompress(data))
        except Exception as error:  # its errors have no class of their own
            raise _garbage("snappy", error, data) from None

    def _check_head(self, data: bytes) -> None:
        """Other bytes would be taken for the size of a chunk, and waited for."""
        self._head += data[: len(_SNAPPY_HEAD) - len(self._head)]
        if not _SNAPPY_HEAD.startswith(self._head):
            raise _garbage("snappy", "no stream identifier", data)

    def farewell(self) -> bytes:
        return b""


def _garbage(what: str, error: object, data: bytes) -> ProtocolError:
    return ProtocolError(f"not an nsqd's bytes: bad {what} ({error}), in {data[:32]!r}")
