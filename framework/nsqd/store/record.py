"""The log's records, bytes to values and back; no file is opened here.

A record is a header (magic, CRC-32 of all that follows, seeded with the folder's salt; payload length, topic
number, first sequence number, count, time of publishing in ns, due time in ms) and a payload. With a count, the
payload is ``[int32 size][body]`` that many times: an MPUB's body as it came. With a count of 0 it is a Declaration:
what a topic is from there on, or, first in a segment, which segment it is.
The highest bit of the count says that the record was moved from an older segment; messages of it that were finished
then have no bodies.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from framework.decoding import prepared

MAGIC = b"\xa9NQ1"
_HEADER = struct.Struct(">4sIIIQIqQ")
_SIZE = struct.Struct(">i")
HEADER_BYTES = _HEADER.size
_MOVED = 1 << 31
_OBJECT_BYTES = 300

MAX_RECORD_BYTES = 1 << 20
MAX_RECORD_MESSAGES = 500
"""What one record holds at most (a lone bigger message excepted): a flipped bit loses one record, no more."""


class Batch(msgspec.Struct, frozen=True, gc=False):
    """One record: ``count`` messages of one topic, numbered from ``first``."""

    topic: int
    first: int
    count: int
    ts: int
    """When it was published, in ns since 1970."""
    due: int
    """When it may be delivered, in ms of the store's clock; 0 is at once."""
    payload: bytes
    moved: bool = False

    @property
    def end(self) -> int:
        """The sequence number behind its last message."""
        return self.first + self.count

    @property
    def weight(self) -> int:
        """About as many bytes of memory as it takes: of one small message, the payload is the least part."""
        return len(self.payload) + _OBJECT_BYTES


class Declared(msgspec.Struct, frozen=True):
    """A channel as a Declaration names it."""

    id: int
    cursor: int
    paused: bool = False


@prepared
class Declaration(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a record with count 0 says of its topic, so that the log alone suffices to rebuild the index."""

    name: str
    pumped: int = 0
    paused: bool = False
    channels: dict[str, Declared] = {}
    dropped: bool = False
    changes: bool = False
    """Only the channels that are new or changed are named: of a topic with thousands, each new one would name all others."""
    gone: tuple[str, ...] = ()
    """With ``changes``: the channels that are there no more."""
    total: int = 0
    """With ``changes``: how many channels there are then."""
    segment: int = 0
    """The number of the segment that begins here; then the record is of no topic."""


def declare(topic: int, first: int, ts: int, declaration: Declaration) -> Batch:
    """The record of a declaration."""
    return Batch(topic, first, 0, ts, 0, msgspec.json.encode(declaration))


def opening(number: int, ts: int) -> Batch:
    """The record that a segment begins with: it says which one it is, whatever the name of its file."""
    return declare(0, 0, ts, Declaration("", dropped=True, segment=number))


def opened(data: bytes, salt: int) -> int | None:
    """The number of the segment that begins with these bytes; None when they do not say: it is older than this record."""
    batch = decode(data, 0, salt)
    return None if batch is None or batch.count else declaration(batch).segment or None


def declaration(batch: Batch) -> Declaration:
    """The declaration in a record with count 0."""
    return msgspec.json.decode(batch.payload, type=Declaration)


def encode(batch: Batch, salt: int) -> tuple[bytes, bytes]:
    """The header and the payload, to be written one behind the other."""
    count = batch.count | _MOVED if batch.moved else batch.count
    fields = (len(batch.payload), batch.topic, batch.first, count, batch.ts, batch.due)
    header = _HEADER.pack(MAGIC, 0, *fields)
    crc = zlib.crc32(batch.payload, zlib.crc32(header[8:], salt))
    return _HEADER.pack(MAGIC, crc, *fields), batch.payload


def decode(data: bytes | memoryview, offset: int, salt: int) -> Batch | None:
    """The record at ``offset``; None where there is none, or its CRC is wrong, or it is not whole."""
    if offset + HEADER_BYTES > len(data):
        return None
    magic, crc, length, topic, first, count, ts, due = _HEADER.unpack_from(data, offset)
    start = offset + HEADER_BYTES
    if magic != MAGIC or start + length > len(data):
        return None
    payload = bytes(data[start : start + length])
    if zlib.crc32(payload, zlib.crc32(data[offset + 8 : start], salt)) != crc:
        return None
    return Batch(topic, first, count & ~_MOVED, ts, due, payload, bool(count & _MOVED))


def salted(data: bytes, offset: int) -> tuple[int, int] | None:
    """The salt with which there is a record at ``offset``, and where it ends; None where no salt can make one of it."""
    said = header(data, offset)
    if said is None or not data.startswith(MAGIC, offset):
        return None
    end = offset + HEADER_BYTES + said.length
    (crc,) = struct.unpack_from(">I", data, offset + 4)
    return (_seed(data[offset + 8 : end], crc), end) if end <= len(data) else None


_ALL = 0xFFFFFFFF
_TABLE = [zlib.crc32(bytes([byte]), _ALL) ^ _ALL for byte in range(256)]
_BACK = {entry >> 24: byte for byte, entry in enumerate(_TABLE)}


def _seed(data: bytes, crc: int) -> int:
    """With which CRC-32 of the data is ``crc``: its steps, backwards."""
    register = crc ^ _ALL
    for byte in reversed(data):
        entry = _BACK[register >> 24]
        register = (register ^ _TABLE[entry]) << 8 & _ALL | (entry ^ byte)
    return register ^ _ALL


class Header(NamedTuple):
    """What a header says, right or wrong."""

    length: int
    topic: int
    first: int
    messages: int
    moved: bool


def header(data: bytes, offset: int) -> Header | None:
    """The header at ``offset``, unchecked; None where there are not enough bytes for one."""
    if offset + HEADER_BYTES > len(data):
        return None
    _, _, length, topic, first, count, _, _ = _HEADER.unpack_from(data, offset)
    return Header(length, topic, first, count & ~_MOVED, bool(count & _MOVED))


def bodies(payload: bytes, count: int) -> Iterator[bytes]:
    """The messages of a payload, in order."""
    offset = 0
    for _ in range(count):
        (size,) = _SIZE.unpack_from(payload, offset)
        yield payload[offset + 4 : offset + 4 + size]
        offset += 4 + size


def split(payload: bytes, count: int) -> Iterator[tuple[bytes, int]]:
    """Cut a payload that is over a record's limits into (payload, count) pairs that are not."""
    if count <= MAX_RECORD_MESSAGES and len(payload) <= MAX_RECORD_BYTES:
        yield payload, count
        return
    start, offset, held = 0, 0, 0
    for _ in range(count):
        (size,) = _SIZE.unpack_from(payload, offset)
        end = offset + 4 + size
        if held and (held == MAX_RECORD_MESSAGES or end - start > MAX_RECORD_BYTES):
            yield payload[start:offset], held
            start, held = offset, 0
        offset = end
        held += 1
    yield payload[start:offset], held
