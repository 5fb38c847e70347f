"""Takes the few messages that keep a segment to the end of the log, so that the segment can go.

A record moves as a whole, with its numbers; of its messages only the unfinished ones keep their bodies. So the index has
the same row for it, at another place, and a crash at any moment leaves the old place or the new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple

from framework.nsqd.store.catalog import Catalog
from framework.nsqd.store.index import Index, Row
from framework.nsqd.store.record import HEADER_BYTES, Batch, bodies
from framework.nsqd.store.segments import Segments
from framework.nsqd.store.state import TopicState

_WORTH = 4
"""A segment is rewritten when it is this many times as big as what it is kept for."""
_MOST_UNFINISHED = 5_000
"""Unfinished messages behind the cursors, above which a segment is not nearly finished."""
_SHARE = 50
"""Looking takes one part of this many of the time, at the most."""
_GROUP_BYTES = 1 << 20
"""Moved at once; publishers wait meanwhile."""
_SIZE = Struct(">i")


class Moving(NamedTuple):
    """A record that must stay, and which messages of it; None: all."""

    row: Row
    kept: frozenset[int] | None

    @property
    def size(self) -> int:
        """About as many bytes as it will have."""
        if self.kept is None:
            return self.row.len
        return HEADER_BYTES + 4 * self.row.n + self.row.len * len(self.kept) // self.row.n


class Compactor:
    """Looks at one segment after another, seldom enough not to be felt. For the thread that saves."""

    def __init__(
        self, log: Segments, index: Index, catalog: Catalog,
        read: Callable[[Row], Batch | None], move: Callable[[Sequence[Batch]], None],
    ) -> None:  # fmt: skip
        """``read`` gives the record that a row names, None when it is damaged; ``move`` writes records once more."""
        self._log = log
        self._index = index
        self._catalog = catalog
        self._read = read
        self._write = move
        self._next = 0
        self._rest_until = 0.0

    def step(self, segments: list[int]) -> int | None:
        """Look at the next of ``segments``; its number if all that it is kept for was moved. Raises OSError."""
        if not segments or time.monotonic() < self._rest_until:
            return None
        segment = next((one for one in segments if one >= self._next), segments[0])
        self._next = segment + 1
        found = self.look(segment)
        return segment if found is not None and self.move(found) else None

    def look(self, segment: int) -> list[Moving] | None:
        """``plan``, or None while it is not time to look at anything again."""
        began = time.monotonic()
        if began < self._rest_until:
            return None
        found = self.plan(segment)
        self._rest_until = time.monotonic() + _SHARE * (time.monotonic() - began)
        return found

    def plan(self, segment: int) -> list[Moving] | None:
        """What to move so that ``segment`` can go; None when it is too much."""
        left = self._log.length(segment) // _WORTH
        found: list[Moving] = []
        for number, (low, high) in self._catalog.ranges_in(segment).items():
            topic = self._catalog.topics.get(number)
            moving = [] if topic is None else self._plan_topic(topic, segment, low, high, left)
            if moving is None:
                return None
            found += moving
            left -= sum(one.size for one in moving)
            if left < 0:
                return None
        return found

    def _plan_topic(self, topic: TopicState, segment: int, low: int, high: int, most: int) -> list[Moving] | None:
        index, channels = self._index, list(topic.channels.values())
        floor = max(low, min([topic.pumped, *(one.cursor for one in channels)]))
        unfinished = {seq for one in channels for seq in one.inflight if low <= seq < floor}
        for channel in channels:
            unfinished.update(index.unfinished_retries(channel.id, low, min(high, floor), _MOST_UNFINISHED))
        if len(unfinished) > _MOST_UNFINISHED or index.size(topic.id, segment, floor, high) > most:
            return None
        whole = index.rows_in(topic.id, segment, floor, high)
        parts: dict[int, tuple[Row, set[int]]] = {}
        for seq in [*sorted(unfinished), *self._tail(topic.id, floor, high)]:
            row = self._row_of(topic.id, segment, seq)
            if row is not None:
                parts.setdefault(row.first, (row, set()))[1].add(seq)
        return [Moving(row, None) for row in whole] + [Moving(row, frozenset(kept)) for row, kept in parts.values()]

    def _tail(self, topic: int, floor: int, high: int) -> range:
        """The messages from ``floor`` on of the record that begins before it, if there is one."""
        row = self._index.next_batch(topic, floor) if floor < high else None
        return range(floor, row.first + row.n) if row and row.first < floor and not row.dead else range(0)

    def _row_of(self, topic: int, segment: int, seq: int) -> Row | None:
        """The record of the segment that has the message, and was not emptied."""
        row = self._index.next_batch(topic, seq)
        return row if row and row.first <= seq and row.seg == segment and not row.dead else None

    def move(self, moving: list[Moving]) -> bool:
        """Whether all of it is at the end of the log now. Raises OSError."""
        group: list[Batch] = []
        for one in moving:
            batch = self._moved(one)
            if batch is None:
                return False  # damaged: the next look at the segment finds it accounted for
            group.append(batch)
            if sum(len(each.payload) for each in group) > _GROUP_BYTES:
                self._write(group)
                group = []
        self._write(group)
        return True

    def _moved(self, one: Moving) -> Batch | None:
        row = one.row
        batch = self._read(row)
        if batch is None:
            return None
        payload = batch.payload if one.kept is None else _hollow(batch, one.kept)
        return Batch(batch.topic, batch.first, batch.count, batch.ts, batch.due, payload, moved=True)


def _hollow(batch: Batch, kept: frozenset[int]) -> bytes:
    """The payload without the bodies of finished messages: nothing that is published is empty, so they are known by it."""
    parts = []
    for seq, body in enumerate(bodies(batch.payload, batch.count), batch.first):
        parts += [_SIZE.pack(len(body)), body] if seq in kept else [_SIZE.pack(0)]
    return b"".join(parts)


def dense(batch: Batch) -> list[Batch]:
    """The runs of messages of a record that was moved which still have their bodies; any other as it is."""
    if not batch.moved:
        return [batch]
    runs: list[tuple[int, list[bytes]]] = []
    for seq, body in enumerate(bodies(batch.payload, batch.count), batch.first):
        if not body:
            continue
        if not runs or runs[-1][0] + len(runs[-1][1]) != seq:
            runs.append((seq, []))
        runs[-1][1].append(_SIZE.pack(len(body)) + body)
    return [Batch(batch.topic, seq, len(each), batch.ts, batch.due, b"".join(each)) for seq, each in runs]
