"""The messages in the answer to a POP or a PULL, as their publishers gave them. Every message comes through here. No I/O here."""

from __future__ import annotations

import struct

import msgspec

from framework.errors import ProtocolError
from framework.headers import NONE, Headers
from framework.message import Message, Origin, Unreadable
from framework.observe import hublog
from framework.transports.rocketmq.wire import properties
from framework.transports.rocketmq.wire.stored import (
    MAGIC,
    PLAIN,
    UNREADABLE,
    UNUSUAL,
    NotInstalled,
    Record,
    Stored,
    decode,
    timestamp_of,
    unpacked,
    unreadable,
)

log = hublog.get(__name__)
_ID, _END = f"{properties.UNIQ_KEY}\x01".encode(), b"\x02"
_KNOWN, _SHORT = 256, 512
"""Kinds of properties that are remembered, and the bytes that those of one may have, with the id."""
_START = struct.Struct(">iI")
_INSIDE = PLAIN.format.replace("iI", "8s", 1)
"""Of ``PLAIN``, with size and magic in one."""
_NOTHING = bytes(2**16)
"""More than any properties have: whatever the next ones are, they are read."""
_FAR = 2**62 // 1_000_000
"""Milliseconds that are nanoseconds within 64 bits."""


class About(msgspec.Struct, gc=False):
    """What the properties of a message say, its id apart."""

    headers: dict[str, str]
    tags: str
    handle: str
    """By POP the broker writes it into a delivery that is a further one, unless the publisher gave one; else empty."""


class _Tail:
    """What stood behind the body of the last message: the next one's is the same but for its id, more often than not."""

    def __init__(self, lead: bytes, id: int, back: bytes, topic: str, about: About) -> None:
        """``lead``, ``back``: all before the id and behind it. ``id``: its bytes."""
        self.lead, self.back, self.topic, self.about = lead, back, topic, about
        shape = struct.Struct(f"{len(lead)}s{id}s{len(back)}s")
        self.parts, self.size = shape.unpack_from, shape.size


_NEVER = _Tail(_NOTHING, 1, _NOTHING, "", About({}, "", ""))
"""That of no message."""


class _Alike:
    """How messages lie that have one size, and differ in their ids and bodies alone: one loop in C takes an answer of them apart,
    in two thirds of the time."""

    def __init__(self, size: int, body_size: int, tail: _Tail) -> None:
        self.start, self.size, self.body_size, self.tail = _START.pack(size, MAGIC), size, body_size, tail
        ends = f"{len(tail.lead)}s{tail.size - len(tail.lead) - len(tail.back)}s{len(tail.back)}s"
        self.each = struct.Struct(f"{_INSIDE}{body_size}s{ends}").iter_unpack


class Opener:
    """For one connection. Most messages of a topic differ in their ids alone: what else their properties say is remembered,
    because to read them took longer than everything else that is done for a message."""

    def __init__(self, connection: Origin) -> None:
        self._connection = connection
        self._known: dict[tuple[bytes, bytes], About] = {}
        self._tails: dict[tuple[bytes, bytes, int, bytes], _Tail] = {}
        self._last = _NEVER
        self._alike: _Alike | None = None

    def opened(self, data: bytes) -> list[tuple[Record, Message | None, About]]:
        """All that stands in the body of an answer. None: what would unpack it is not installed here, which is logged; another
        worker can perhaps. Raises ProtocolError for what no broker sends; publishers may have given anything."""
        found: list[tuple[Record, Message | None, About]] = []
        read = 0
        if (alike := self._alike) is not None and len(data) % alike.size == 0:
            self._open_alike(alike, data, found)
            read = len(found) * alike.size
        if read < len(data):
            self._open_each(data, read, found)
        return found

    def _open_alike(self, alike: _Alike, data: bytes, found: list[tuple[Record, Message | None, About]]) -> None:
        """Those in front that are like the ones of an earlier answer."""
        connection, start, size, tail = self._connection, alike.start, alike.body_size, alike.tail
        lead, back, topic, about = tail.lead, tail.back, tail.topic, tail.about
        given = about.headers
        for head, queue, offset, physical, flags, born, stored_at, reconsumed, body_size, body, said, id, after in alike.each(
            data
        ):
            if said != lead or after != back or head != start or body_size != size or flags & UNUSUAL or not id.isalnum():
                break
            record = Record(topic, queue, offset, physical, stored_at, reconsumed)
            timestamp = born * 1_000_000 if -_FAR < born < _FAR else timestamp_of(born)
            headers = given.copy() if given else NONE
            found.append((record, Message(id, timestamp, reconsumed + 1, body, connection, headers), about))

    def _open_each(self, data: bytes, at: int, found: list[tuple[Record, Message | None, About]]) -> None:
        """Those from ``at`` on. All in one place, and without a ``Stored``: those cost a third of what a message costs here."""
        connection, read, head = self._connection, PLAIN.unpack_from, PLAIN.size
        tail = self._last
        lead, back, topic, about, parts, tail_size = tail.lead, tail.back, tail.topic, tail.about, tail.parts, tail.size
        end, size, body_size = len(data), 0, 0
        try:
            while at < end:
                size, magic, queue, offset, physical, flags, born, stored_at, reconsumed, body_size = read(data, at)
                if magic != MAGIC or flags & UNUSUAL:
                    at = self._open_another(data, at, found)
                    continue
                body_at, following = at + head, at + size
                body_end = body_at + body_size
                said = id = after = b""
                if body_end + tail_size == following <= end and body_size >= 0:
                    said, id, after = parts(data, body_end)
                if said == lead and after == back and id.isalnum():
                    record = Record(topic, queue, offset, physical, stored_at, reconsumed)
                else:
                    topic_at = body_end + 1
                    properties_at = topic_at + data[body_end] + 2
                    properties_end = properties_at + (data[properties_at - 2] << 8 | data[properties_at - 1])
                    if not body_at <= body_end < properties_end <= following <= end:
                        raise ValueError(f"{size} bytes are not its size")
                    topic = data[topic_at : properties_at - 2].decode()
                    record = Record(topic, queue, offset, physical, stored_at, reconsumed)
                    front, back, about, id = self._read(data[properties_at:properties_end], record)
                    tail = self._tail_of(data[body_end:properties_at], front, len(id), back, topic=topic, about=about)
                    lead, back, parts, tail_size = tail.lead, tail.back, tail.parts, tail.size
                headers = about.headers.copy() if about.headers else NONE
                # By its publisher's clock, because the time at which it was stored is another one in each delivery.
                timestamp = born * 1_000_000 if -_FAR < born < _FAR else timestamp_of(born)
                body = data[body_at:body_end]
                found.append((record, Message(id, timestamp, reconsumed + 1, body, connection, headers), about))
                at = following
            self._last = tail
            if len(found) > 1 and size * len(found) == end:
                self._expect(size, body_size, tail)
        except UNREADABLE as error:
            raise unreadable(error, data, at) from None

    def _expect(self, size: int, body_size: int, tail: _Tail) -> None:
        """The next answer may be one of messages as these."""
        known = self._alike
        if known is not None and (known.size, known.body_size, known.tail) == (size, body_size, tail):
            return
        if body_size >= 0 and PLAIN.size + body_size + tail.size == size:  # else the last one is of another kind
            self._alike = _Alike(size, body_size, tail)

    def _open_another(self, data: bytes, at: int, found: list[tuple[Record, Message | None, About]]) -> int:
        """Add the message at ``at``, packed or with addresses of IPv6, to ``found``; returns where the next one begins."""
        stored, following = decode(data, at)
        record = stored.record
        _, _, about, id = self._read(stored.properties, record)
        headers = about.headers.copy() if about.headers else NONE
        found.append((record, self._message(stored, record, id, headers), about))
        return following

    def _read(self, given: bytes, record: Record) -> tuple[bytes, bytes, About, bytes]:
        """What stands before the id and behind it, what the properties say else, and the id.

        What stays the same when it comes again is its publisher's id, where there is one. A broker stores the properties of a
        batch as they are: what is no UTF-8 is read as Java reads it."""
        before, mark, rest = given.partition(_ID)
        id, end, behind = rest.partition(_END)
        known = self._known.get((before, behind))
        if known is not None and id and end and id.isascii():
            return before + mark, end + behind, known, id
        found = properties.decode(given.decode(errors="replace"))
        own = (found.get(properties.UNIQ_KEY) or record.message_id).encode()
        about = About(properties.for_handlers(found), found.get(properties.TAGS, ""), found.get(properties.POP_CK, ""))
        if own != id or not end or (before and not before.endswith(_END)) or about.handle or len(given) > _SHORT:
            return _NOTHING, _NOTHING, about, own
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[before, behind] = about
        return before + mark, end + behind, about, own

    def _tail_of(self, named: bytes, front: bytes, id: int, back: bytes, *, topic: str, about: About) -> _Tail:
        """``named``: the name of the topic and the size of the properties, as they stand there. ``id``: its bytes."""
        if front is _NOTHING:
            return _NEVER
        key = named, front, id, back
        if (found := self._tails.get(key)) is None:
            if len(self._tails) >= _KNOWN:
                self._tails.clear()
            found = self._tails[key] = _Tail(named + front, id, back, topic, about)
        return found

    def _message(self, stored: Stored, record: Record, id: bytes, headers: Headers) -> Message | None:
        one, attempts = self._connection, stored.reconsumed + 1
        try:
            body = unpacked(stored.body, stored.sys_flag)
        except NotInstalled as error:
            log.error("%s/%s: message %s from %s: %s", one.topic, one.channel, record.message_id, one.node, error)
            return None
        except ProtocolError as error:
            return Unreadable(id, stored.timestamp, attempts, stored.body, one, headers, why=str(error))
        return Message(id, stored.timestamp, attempts, body, one, headers)
