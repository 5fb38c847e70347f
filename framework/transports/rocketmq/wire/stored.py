"""Messages as a broker stores them: what PULL and POP answers have in their bodies. No I/O here.

Source: MessageDecoder of RocketMQ 5.3.3.
"""

from __future__ import annotations

import struct
import zlib
from importlib import import_module
from ipaddress import ip_address
from typing import Any, Final

import msgspec

from framework.errors import ProtocolError
from framework.transports.rocketmq.wire import properties
from framework.transports.rocketmq.wire.frames import garbage

MAGIC, MAGIC_LONG_TOPIC = 0xDAA320A7, 0xDAA320AB
"""The second has two bytes for the length of its topic."""
COMPRESSED, _COMPRESSOR = 0x1, 0x700
_BORN_V6, _STORE_V6 = 0x10, 0x20
_LARGEST: Final = 64 * 1024 * 1024
"""Bytes that a body may have when it is unpacked: far more than a broker takes."""
_FIRST = struct.Struct(">iIIiiqqiq")
_KINDS = [born | store for born in (0, _BORN_V6) for store in (0, _STORE_V6)]
PLAIN: Final = struct.Struct(">iI4xi4xqqiq8x8x8si8xi")
"""Of a message with addresses of IPv4: its size and magic, queue_id, queue_offset, physical_offset, sys_flag, born, stored_at,
reconsumed and the size of its body, which follows."""
UNUSUAL: Final = _BORN_V6 | _STORE_V6 | COMPRESSED
"""Flags of what is not read by ``PLAIN`` alone."""
_SHAPES: Final = {kind: struct.Struct(f">{20 if kind & _BORN_V6 else 8}sq{20 if kind & _STORE_V6 else 8}siqi") for kind in _KINDS}
"""What follows the first part, by the kinds of addresses in it."""
_INT16 = struct.Struct(">h")
_LATEST = 2**63 - 1


def timestamp_of(born: int) -> int:
    """Milliseconds as nanoseconds, within 64 bits."""
    return max(-_LATEST, min(born * 1_000_000, _LATEST))


class Record(msgspec.Struct, gc=False):
    """Where a message lies: what its broker must be told to find it there."""

    topic: str
    queue_id: int
    queue_offset: int
    """Its number in its queue."""
    physical_offset: int
    """Where it lies in the broker's log."""
    stored_at: bytes
    """Address and port of its broker, packed."""
    reconsumed: int
    """How often it was delivered before."""

    @property
    def message_id(self) -> str:
        """By which brokers find it: address and place in the log."""
        return (self.stored_at + struct.pack(">q", self.physical_offset)).hex().upper()


class Stored(msgspec.Struct, gc=False):
    """One message."""

    topic: str
    queue_id: int
    queue_offset: int
    """Its number in its queue."""
    physical_offset: int
    """Where it lies in the broker's log."""
    flag: int
    sys_flag: int
    born: int
    """Milliseconds since 1970, by the clock of its publisher."""
    born_at: bytes
    """Address and port of its publisher, packed."""
    stored: int
    """Milliseconds since 1970, by the clock of its broker. Of what comes again: when it was made ready to come again."""
    stored_at: bytes
    """Address and port of its broker, packed."""
    reconsumed: int
    """How often it was delivered before."""
    prepared_offset: int
    body_crc: int
    body: bytes
    """As it is stored: ``unpacked`` undoes what its publisher's library did to it."""
    properties: bytes
    """As ``properties.decode`` reads them."""

    @property
    def timestamp(self) -> int:
        """``born`` in nanoseconds, within 64 bits: a publisher may say any time."""
        return timestamp_of(self.born)

    @property
    def id(self) -> bytes:
        """Its publisher's, where there is one."""
        said = properties.decode(self.properties.decode(errors="replace"))
        return (said.get(properties.UNIQ_KEY) or self.record.message_id).encode()

    @property
    def record(self) -> Record:
        return Record(self.topic, self.queue_id, self.queue_offset, self.physical_offset, self.stored_at, self.reconsumed)

    @property
    def born_host(self) -> str:
        return _address(self.born_at)

    @property
    def store_host(self) -> str:
        return _address(self.stored_at)


def decode_all(data: bytes) -> list[Stored]:
    """All messages that stand in ``data``, one behind the other. Raises ProtocolError for what is none."""
    found: list[Stored] = []
    at = 0
    try:
        while at < len(data):
            message, at = decode(data, at)
            found.append(message)
    except UNREADABLE as error:
        raise unreadable(error, data, at) from None
    return found


UNREADABLE = (struct.error, UnicodeDecodeError, ValueError, IndexError)
"""What reading a message raises that is none."""


def unreadable(error: Exception, data: bytes, at: int) -> ProtocolError:
    return garbage(f"a stored message that cannot be read ({error})", data, at)


def decode(data: bytes, at: int) -> tuple[Stored, int]:
    """The message that begins at ``at``, and where the next one begins. Raises ProtocolError, or what is ``UNREADABLE``."""
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born = _FIRST.unpack_from(data, at)
    end = at + size
    if magic not in (MAGIC, MAGIC_LONG_TOPIC) or size < _FIRST.size or end > len(data):
        raise garbage(f"a stored message of {size} bytes that begins with {magic:#x}", data, at)
    shape = _SHAPES[sys_flag & (_BORN_V6 | _STORE_V6)]
    born_at, stored, stored_at, reconsumed, prepared, body_size = shape.unpack_from(data, at + _FIRST.size)
    body, here = _take(data, at + _FIRST.size + shape.size, body_size, end)
    topic, here = _take(data, here + (2 if magic == MAGIC_LONG_TOPIC else 1), _topic_size(data, here, magic), end)
    properties, _ = _take(data, here + 2, _INT16.unpack_from(data, here)[0], end)
    return Stored(
        topic.decode(), queue_id, queue_offset, physical_offset, flag, sys_flag, born, born_at, stored, stored_at,
        reconsumed, prepared, crc, body, properties,
    ), end  # fmt: skip


def _address(packed: bytes) -> str:
    host, port = str(ip_address(packed[:-4])), int.from_bytes(packed[-4:], "big")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _topic_size(data: bytes, at: int, magic: int) -> int:
    return int(_INT16.unpack_from(data, at)[0]) if magic == MAGIC_LONG_TOPIC else data[at : at + 1][0]


def _take(data: bytes, at: int, size: int, end: int) -> tuple[bytes, int]:
    if size < 0 or at + size > end:
        raise ValueError(f"a part of {size} bytes where {end - at} are left")
    return data[at : at + size], at + size


# --- bodies that publishers packed -------------------------------------------------------------------------


class NotInstalled(ProtocolError):
    """What unpacks a body is not there: elsewhere it may be."""


def unpacked(body: bytes, sys_flag: int) -> bytes:
    """``body`` as it was before its publisher's library packed it. Raises NotInstalled, and ProtocolError where that cannot be
    undone."""
    if not sys_flag & COMPRESSED:
        return body
    kind = (sys_flag & _COMPRESSOR) >> 8
    try:
        return _UNPACK[kind](body)
    except KeyError:
        raise ProtocolError(f"a body that is packed in an unknown way ({kind})") from None
    except ImportError as error:
        raise NotInstalled(f"a body that its publisher packed, and there is no {error.name} to unpack it: install it") from None
    except Exception as error:  # zlib's, lz4's and zstandard's own
        raise ProtocolError(f"a packed body that cannot be unpacked: {error}") from None


def _zlib(body: bytes) -> bytes:
    return _whole(zlib.decompressobj(), body)


def _lz4(body: bytes) -> bytes:
    return _whole(import_module("lz4.frame").LZ4FrameDecompressor(), body)


def _whole(one: Any, body: bytes) -> bytes:
    """Never more than ``_LARGEST``, whatever ``body`` would be unpacked to: a few kilobytes can be as many gigabytes."""
    data = bytes(one.decompress(body, _LARGEST))
    if not one.eof:
        raise ValueError(f"it does not end, or has more than {_LARGEST} bytes")
    return data


def _zstd(body: bytes) -> bytes:
    zstandard: Any = import_module("zstandard")
    if zstandard.frame_content_size(body) > _LARGEST:  # it would go by that, and by ``max_output_size`` where nothing is said
        raise ValueError(f"it has more than {_LARGEST} bytes")
    return bytes(zstandard.ZstdDecompressor().decompress(body, max_output_size=_LARGEST))


_UNPACK = {0: _zlib, 1: _lz4, 2: _zstd, 3: _zlib}
