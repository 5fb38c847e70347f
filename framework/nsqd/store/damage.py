"""What damaged bytes of the log were: which records, and of which messages. It opens no file and decides nothing.

Two things tell it. A topic's numbers have no gaps, so what is missing between two of its records was in the damaged bytes
between them. And one flipped bit leaves most of a header, and the sizes in a payload, as they were.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from framework.nsqd.store import record
from framework.nsqd.store.record import HEADER_BYTES, MAGIC

_SIZE = struct.Struct(">I")
_LEAST_BYTES = _SIZE.size + 1
"""What one message takes in a payload at the least."""
_MOST_CUT_OFF = 64 << 20
"""Bytes that may lack at the end of a segment."""
LEAP = 1 << 30
"""By how much numbers jump at the least where they are not to be used again: more messages than a segment, and what may lack at
its end, can have had. So a jump is never taken for messages that were lost, however soon one comes after another."""


class Piece(NamedTuple):
    """Damaged bytes that were one record, or its beginning, as far as can be told."""

    offset: int
    """In the bytes that were looked at."""
    length: int
    whole: bool
    """It has an end, so it was not cut off while it was being written."""
    topic: int = 0
    first: int = 0
    messages: int = 0
    """Numbers that it has."""
    with_body: int = 0
    """Of these, with a body: a record that was moved has those of unfinished messages only."""
    moved: bool = False

    @property
    def numbers(self) -> tuple[int, int, int]:
        """(topic, low, high) of the messages that its header says it had."""
        return self.topic, self.first, self.first + self.messages


_NOTHING = Piece(0, 0, False)


def pieces(data: bytes) -> Iterator[Piece]:
    """Cut damaged bytes at the records that they were."""
    offset = 0
    while offset < len(data):
        piece = _piece(data, offset)
        yield piece
        offset += piece.length


def _piece(data: bytes, offset: int) -> Piece:
    said = record.header(data, offset)
    if said is None:
        return Piece(offset, len(data) - offset, False)
    start = offset + HEADER_BYTES
    ends = (start + said.length, _walk(data, start, said.messages))
    end = next((one for one in ends if one is not None and _ends(data, one)), None)
    whole = end is not None
    if end is None:
        following = data.find(MAGIC, offset + len(MAGIC))
        end = following if following >= 0 else len(data)
        whole = _is_declaration(data[start:end])
    messages, with_body = _count(data[start:end], said.messages)
    moved = said.moved or _is_hollow(data[start:end])
    return Piece(offset, end - offset, whole, said.topic, said.first, messages, with_body, moved)


def _ends(data: bytes, offset: int) -> bool:
    """Whether a record may end there: with the bytes, or before another."""
    return offset == len(data) or data[offset : offset + len(MAGIC)] == MAGIC


def _walk(data: bytes, offset: int, count: int) -> int | None:
    """Where the payload that begins at ``offset`` ends, by the sizes of its ``count`` messages; None when they are no sizes."""
    if not count:
        return None
    for _ in range(count):
        if offset + _SIZE.size > len(data):
            return None
        (size,) = _SIZE.unpack_from(data, offset)
        offset += _SIZE.size + size
    return offset


def _count(payload: bytes, said: int) -> tuple[int, int]:
    """How many messages there were, and how many had a body: by their sizes, which must add up, else as the header says."""
    if _is_declaration(payload):
        return 0, 0
    sizes, whole = _sizes(payload)
    if not whole and said <= record.MAX_RECORD_MESSAGES:
        sizes, whole = _repaired(payload, said, sizes)
    if whole:
        return len(sizes), sum(size > 0 for size in sizes)
    found = min(said, len(payload) // _SIZE.size)
    return found, min(found, len(payload) // _LEAST_BYTES)


def _sizes(payload: bytes, offset: int = 0, most: int | None = None) -> tuple[list[int], bool]:
    """The sizes one after another from ``offset`` on, and whether they add up: not where there are more than ``most``."""
    sizes: list[int] = []
    while offset + _SIZE.size <= len(payload) and len(sizes) != most:
        (size,) = _SIZE.unpack_from(payload, offset)
        sizes.append(size)
        offset += _SIZE.size + size
    return sizes, offset == len(payload)


def _repaired(payload: bytes, said: int, before: list[int]) -> tuple[list[int], bool]:
    """The sizes, if it is one bit of one of them that is wrong.

    It looks at no more of them than ``said``: a power cut leaves zeros, each four of which are a size."""
    offset = 0
    for at, wrong in enumerate(before[:said]):
        for bit in range(32):
            size = wrong ^ 1 << bit
            behind, whole = _sizes(payload, offset + _SIZE.size + size, said - at - 1)
            if whole and at + 1 + len(behind) == said:
                return [*before[:at], size, *behind], True
        offset += _SIZE.size + wrong
    return before, False


def _is_hollow(payload: bytes) -> bool:
    """Whether it lacks bodies of finished messages, as only a record that was moved does."""
    sizes, whole = _sizes(payload)
    return whole and 0 in sizes


def _is_declaration(payload: bytes) -> bool:
    return payload.startswith(b'{"') and payload.endswith(b"}")


@dataclass
class Damage:
    """Bytes of one segment that are no record any more, and what was in them."""

    segment: int
    offset: int
    length: int
    piece: Piece
    lost: list[tuple[int, int, int]] = field(default_factory=list)
    """(topic, low, high) of the numbers that it had."""
    unknown: int = 0
    """Messages that it had of which not even the numbers are known."""

    @property
    def is_end(self) -> bool:
        """Nothing is damaged there: it is what may have been cut off behind a segment's last byte."""
        return not self.length

    @property
    def room(self) -> int:
        """How many more messages it may have had."""
        length = _MOST_CUT_OFF if self.is_end else self.length - HEADER_BYTES
        return max(0, length) // _LEAST_BYTES - sum(high - low for _, low, high in self.lost)


class Numbers:
    """Follows the numbers of each topic through the log."""

    def __init__(self) -> None:
        self.damages: list[Damage] = []
        self._next: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        """How many of ``damages`` came before the topic's last record: of these it is known whether they had any of it."""

    def ended(self, segment: int, size: int) -> None:
        """The segment ends there. Whether something was cut off is known when the next one says which numbers are next."""
        if self._next:
            self.damages.append(Damage(segment, size, 0, _NOTHING))

    def restart(self) -> None:
        """Segments are missing here, because all that they had is finished: gaps mean nothing."""
        self._next.clear()

    def met(self, topic: int, first: int, end: int) -> None:
        """A record of the topic with the numbers [first, end), or a declaration that says ``first`` is next."""
        if self.damages and self._asked.get(topic, 0) < len(self.damages):
            self._ask(topic, first)
        if self._next.get(topic, -1) < end:  # a topic that is declared empty is known to begin at 0
            self._next[topic] = end

    def _ask(self, topic: int, first: int) -> None:
        since, self._asked[topic] = self._asked.get(topic, 0), len(self.damages)
        between = self.damages[since:]
        own = [one for one in between if one.piece.topic == topic and not one.piece.moved]
        low = self._next.get(topic)
        if low is None:
            _believe(own, first)
            return
        if first <= low:
            return
        for one in own:
            high = min(low + one.piece.messages, first)
            if high > low:
                one.lost.append((topic, low, high))
                low = high
        # The rest is of bytes whose header lies, or was one of several; or of the end of a segment that was cut off. Unless it
        # is more than they hold: then the numbers jumped.
        others = sorted(between, key=lambda one: (one.is_end, one.piece.moved, bool(one.lost)))
        if first - low <= sum(one.room for one in others):
            for one in others:
                high = min(low + one.room, first)
                if high > low:
                    one.lost.append((topic, low, high))
                    low = high

    def begin(self, topic: int, end: int) -> None:
        """The topic's numbers are known up to ``end`` already, from before what is scanned."""
        self._next[topic] = end

    def finish(self) -> None:
        """The log has ended: what was damaged behind a topic's last record is what its header says."""
        for at, one in enumerate(self.damages):
            piece = one.piece
            besides = piece.moved and piece.topic in self._next and piece.numbers not in one.lost
            if not piece.messages or (one.lost and not besides):
                continue
            if piece.moved and piece.first + piece.messages <= self._next.get(piece.topic, 0):
                one.lost.append(piece.numbers)
            elif piece.moved or piece.topic not in self._next:
                one.unknown = piece.with_body  # its header lies: of a topic's numbers, or of the topic
            elif self._asked.get(piece.topic, 0) <= at:
                low = self._next[piece.topic]
                one.lost.append((piece.topic, low, low + piece.messages))
                self._next[piece.topic] = low + piece.messages
        self.damages = [one for one in self.damages if one.lost or not one.is_end]


def _believe(own: list[Damage], first: int) -> None:
    """Where a topic's numbers before the damage are not known, its own header is all that says which it had."""
    for one in own:
        piece = one.piece
        if piece.messages and piece.first + piece.messages <= first:
            one.lost.append(piece.numbers)


def say_damaged(count: int) -> tuple[str, str]:
    """What is said of damaged bytes before and behind the place where they are kept."""
    return f"are damaged: {count} messages lost", "; all others are served"
