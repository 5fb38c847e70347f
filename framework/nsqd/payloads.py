"""Many messages that were published at once, cut into what the log takes as one record; they are stored all or none.

An MPUB may have a million messages, and an HTTP request more lines than that: this is done in slices, on the hub, and
leaves nothing to do message by message to the thread that writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from framework.nsqd.slices import Slices
from framework.nsqd.store import record

Payload = tuple[bytes, int]
"""A payload as the log stores it, each message with its size before it, and how many messages it has."""

_SIZE = Struct(">i")
_LINES_BYTES = 2 << 10
"""Lines are looked at in chunks of about so many bytes: a thousand of the shortest."""


class TooLong(Exception):
    """A message is longer than it may be."""


def cut(payload: bytes, count: int) -> list[Payload]:
    """The ``count`` messages of a payload, in their order."""
    slices, found = Slices(), list[Payload]()
    for piece in record.split(payload, count):
        found.append(piece)
        slices.breathe()
    return found


def lines(body: bytes, most: int) -> list[Payload]:
    """Each line that is not empty is a message. Raises TooLong when one has more than ``most`` bytes."""
    slices, found = Slices(), list[Payload]()
    for chunk in _chunks(body):
        if messages := [line for line in chunk.split(b"\n") if line]:
            if len(max(messages, key=len)) > most:
                raise TooLong
            payload = b"".join(part for line in messages for part in (_SIZE.pack(len(line)), line))
            found += record.split(payload, len(messages))
        slices.breathe()
    return found


def _chunks(body: bytes) -> Iterator[bytes]:
    """Whole lines."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start + _LINES_BYTES) + 1 or len(body)
        yield body[start:end]
        start = end
