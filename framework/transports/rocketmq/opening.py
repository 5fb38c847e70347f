"""The messages in the answer to a POP or a PULL, as their publishers gave them. Every message comes through here. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from framework.errors import ProtocolError
from framework.headers import NONE
from framework.message import Message, Origin
from framework.observe import hublog
from framework.transports.rocketmq.wire import properties
from framework.transports.rocketmq.wire.frames import garbage
from framework.transports.rocketmq.wire.stored import COMPRESSED, Stored, decode_all, unpacked

log = hublog.get(__name__)
_ID, _END = f"{properties.UNIQ_KEY}\x01".encode(), b"\x02"
_KNOWN, _SHORT = 256, 512
"""Kinds of properties that are remembered, and the bytes that those of one may have."""
_FAR = 2**62 // 1_000_000
"""Milliseconds that are nanoseconds within 64 bits."""


class About(msgspec.Struct, gc=False):
    """What the properties of a message say, its id apart."""

    headers: dict[str, str]
    tags: str
    handle: str
    """Of a delivery that is a further one, by POP; else empty."""


class Opener:
    """For one connection. Most messages of a topic differ in their ids alone: what else their properties say is remembered,
    because to read them took longer than everything else that is done for a message."""

    def __init__(self, connection: Origin) -> None:
        self._connection = connection
        self._known: dict[tuple[bytes, bytes], About] = {}

    def opened(self, data: bytes) -> Iterator[tuple[Stored, Message | None, About]]:
        """All that stands in the body of an answer. None: it cannot be unpacked here, which is logged; another worker can
        perhaps. Raises ProtocolError."""
        known, connection = self._known, self._connection
        for stored in decode_all(data):
            before, _, rest = stored.properties.partition(_ID)
            id, _, behind = rest.partition(_END)
            about = known.get((before, behind))
            if about is None or not id:
                about, id = self._read(stored, before, id, behind)
            body = self._unpacked(stored) if stored.sys_flag & COMPRESSED else stored.body
            if body is None:
                yield stored, None, about
                continue
            born = stored.born
            # By its publisher's clock, because the time at which it was stored is another one in each delivery.
            timestamp = born * 1_000_000 if -_FAR < born < _FAR else stored.timestamp
            headers = about.headers.copy() if about.headers else NONE
            yield stored, Message(id, timestamp, stored.reconsumed + 1, body, connection, headers), about

    def _read(self, stored: Stored, before: bytes, id: bytes, behind: bytes) -> tuple[About, bytes]:
        """What stays the same when it comes again is its publisher's id, where there is one; ``id``, where ``before`` it and
        ``behind`` it are properties."""
        try:
            found = properties.decode(stored.properties.decode())
        except UnicodeDecodeError as error:
            raise garbage(f"properties that cannot be read ({error})", stored.properties, 0) from None
        own = (found.get(properties.UNIQ_KEY) or stored.message_id).encode()
        about = About(properties.for_handlers(found), found.get(properties.TAGS, ""), found.get(properties.POP_CK, ""))
        alone = own == id and (not before or before.endswith(_END))
        if alone and not about.handle and len(before) + len(behind) <= _SHORT:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[before, behind] = about
        return about, own

    def _unpacked(self, stored: Stored) -> bytes | None:
        try:
            return unpacked(stored.body, stored.sys_flag)
        except ProtocolError as error:
            one = self._connection
            log.error("%s/%s: message %s from %s: %s", one.topic, one.channel, stored.message_id, one.node, error)
            return None
