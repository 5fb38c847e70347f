"""A message that was pulled, and the delays after which one that is sent back comes again. No I/O here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from framework.transports.rocketmq.queues import Reading
from framework.transports.rocketmq.wire.frames import Frame, garbage, number_in
from framework.transports.rocketmq.wire.stored import Record

Opened: TypeAlias = tuple[Record, Any, Any]
"""A message as its broker stored it, as it was opened, and what else is known of it."""
LEVELS = (1.0, 5.0, 10.0, 30.0, *(60.0 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)), 3600.0, 7200.0)
"""Seconds: the delays of a broker's messageDelayLevel, as it comes."""
SOONEST = 1
"""The level of the shortest delay."""
SIZE = 200
"""Bytes of a settlement, about."""
UNREADABLE = 5
"""The level of the delay after which another worker may try a body that cannot be unpacked here."""


def level_of(delay: float) -> int:
    """The number of the level that is ``delay`` seconds or more; the last one for what is longer than all."""
    return min(bisect_left(LEVELS, delay), len(LEVELS) - 1) + 1


def offset_in(fields: Mapping[str, str], name: str, otherwise: int) -> int:
    """What an answer says."""
    said = number_in(fields, name)
    return otherwise if said is None else said


def following(fields: Mapping[str, str], offset: int) -> int:
    """Where a queue goes on that has nothing at ``offset``. One that begins with 0 and ends before ``offset`` was made anew, with
    its topic or on an empty disk: all of it is new. Its broker, and Java's client by that, would go on behind what it has."""
    if offset_in(fields, "minOffset", -1) == 0 and offset_in(fields, "maxOffset", offset) < offset:
        return 0
    return offset_in(fields, "nextBeginOffset", offset)


def placed(found: list[Opened], answer: Frame, start: int) -> tuple[list[Opened], bool, int]:
    """The messages of an answer to a PULL of what lies at ``start``, whether their places are known, and how far it goes. Raises
    ProtocolError."""
    if not found:
        raise garbage("an answer to a PULL without the messages that it announces", answer.body, 0)
    end = offset_in(answer.fields, "nextBeginOffset", 0)
    return found, put_in_place(found, start, end), end


def put_in_place(found: Sequence[Opened], start: int, following: int) -> bool:
    """Have the records of an answer name their places in the queue, from ``start`` to ``following``, where they name others: a
    broker that has lost a part of its index puts what comes after it before the place that it gave it. Whether they are known;
    else they are no further than that."""
    first, last, count = found[0][0].queue_offset, found[-1][0].queue_offset, len(found)
    known = count == following - start
    if (first == start and last == start + count - 1) if known else (following <= start or (start <= first and last < following)):
        return True
    for place, (record, _, _) in enumerate(found, start):
        record.queue_offset = place
    return known


class Pulled:
    """One message that is not settled. ``counted``: it was delivered here."""

    __slots__ = ("answered", "counted", "dead", "id", "level", "reading", "record")

    def __init__(self, reading: Reading, record: Record, id: bytes, *, counted: bool = True) -> None:
        self.reading = reading
        self.record = record
        self.id = id
        self.level = 0
        """Of the delay after which it comes again."""
        self.counted = counted
        self.answered = False
        """It was sent back, and the broker has it."""
        self.dead = False
        """It was given up: what is sent back does not come again."""
