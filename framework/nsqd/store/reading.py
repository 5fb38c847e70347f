"""How the log is read: every row of the index is held against the record that it names, and what is damaged is accounted for.

A row that does not fit is looked into by one scan of its segment, which sets all of that segment's rows right; a gap in the
numbers of a topic likewise by one scan of each. Neither is done twice while the process lives. What one stretch of damage
took, a whole file perhaps, is accounted for in one step.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from framework.nsqd.store import unfinished
from framework.nsqd.store.catalog import Catalog
from framework.nsqd.store.compaction import dense
from framework.nsqd.store.damage import say_damaged
from framework.nsqd.store.folder import ReadOnlyFolder
from framework.nsqd.store.index import EMPTIED, Index, Row
from framework.nsqd.store.lostend import give_up, runs
from framework.nsqd.store.record import Batch, decode
from framework.nsqd.store.record import bodies as each_body
from framework.nsqd.store.segments import Broken, Found, Segments
from framework.nsqd.store.state import Correction

_READ_ROWS = 64
"""Index rows looked up at once."""
_NOWHERE = 1 << 62
"""Behind the end of every segment."""


class Hole(NamedTuple):
    """Where a segment has no records, in bytes."""

    start: int
    end: int


def bodies(
    read: Callable[[int, int, int], list[Batch]], topic: int, seqs: Iterable[int], max_bytes: int
) -> dict[int, tuple[int, bytes] | None]:
    """(time of publishing in ns, body) of each of these messages, in this order; None for one that the log does not have.

    The one that makes it ``max_bytes`` is the last: those behind are not in the answer."""
    found: dict[int, tuple[int, bytes] | None] = {}
    held = 0
    asked = dict.fromkeys(seqs)
    for seq in asked:
        if held >= max_bytes:
            break
        if seq in found:
            continue
        for batch in read(topic, seq, 1):
            each = each_body(batch.payload, batch.count)
            for at, body in enumerate(each, batch.first):
                if at in asked and at not in found:
                    found[at] = batch.ts, body
                    held += len(body)
        found.setdefault(seq, None)
    return found


class Reader:
    """Reads by the index. What it finds wrong it sets right there, and reports."""

    def __init__(self, folder: ReadOnlyFolder, log: Segments, index: Index, catalog: Catalog) -> None:
        self.corrections: list[Correction] = []
        """Where the counts that the user knows are wrong; the user takes them out."""
        self._folder = folder
        self._log = log
        self._index = index
        self._catalog = catalog
        self._wrong = False
        """The index has named a wrong place: more of its rows may."""
        self._examined: dict[int, list[Broken]] = {}
        """Segments of which every row of the index was held against the log, and what is damaged there."""
        self._examining: dict[int, tuple[list[Broken], Iterator[Found | Broken]]] = {}
        """The same of segments of which a part was."""

    def read(self, topic: int, seq: int, max_bytes: int) -> list[Batch]:
        """The batch that holds ``seq`` or else follows it, and those behind it up to ``max_bytes`` (at least one).

        Emptied ones are left out. What is damaged on the disk is set aside, reported and left out."""
        batches: list[Batch] = []
        held, expected = 0, seq
        while not batches and (rows := self._index.batches(topic, expected, _READ_ROWS)):
            for row in rows:
                if row.first > expected:
                    expected = self._look_into_gap(topic, expected, row.first)
                    break
                if not row.dead:
                    batch = self.checked(row)
                    if batch is None:
                        break
                    batches += [run for run in dense(batch) if run.end > seq]
                    held += len(batch.payload)
                expected = max(expected, row.first + row.n)
                if batches and held >= max_bytes:
                    break
        return batches

    def checked(self, row: Row) -> Batch | None:
        """The record that ``row`` names; None when the row was wrong or the record is damaged, which was dealt with."""
        batch = self._record(row)
        if batch is not None:
            return batch
        if row.seg not in self._examined:
            self.examine(row.seg)
            if self._index.row(row.topic, row.first) != row:
                return None
        hole = self._hole(row)
        if hole is None or hole.end == _NOWHERE or self._wrong:  # the row may be wrong, not the segment
            self._examine_all()
            if self._index.row(row.topic, row.first) != row:
                return None
        if hole is not None:
            there = self._index.all_of(row.seg, hole.start, hole.end)
            self._lose(row.seg, hole, [one for one in there if not one.dead and self._record(one) is None])
            return None
        with self._index.transaction():
            self._index.remove_batch(row.topic, row.first)
        if self._index.count(row.topic, row.first, row.first + row.n):
            self.corrections.append(Correction(row.topic, row.first, row.first + row.n))
            self._say_corrected(row.topic)
        else:
            self._lose(row.seg, Hole(row.off, row.off + row.len), [row])
        return None

    def _record(self, row: Row) -> Batch | None:
        batch = decode(self._log.read(row.seg, row.off, row.len), 0, self._log.salt)
        if batch is None or (batch.topic, batch.first, batch.count) != (row.topic, row.first, row.n):
            return None
        return batch

    def _hole(self, row: Row) -> Hole | None:
        """The damaged bytes of the log that ``row`` names, or what is behind the end of its segment; None: the row is wrong."""
        for one in self._examined.get(row.seg, ()):
            if one.offset < row.off + row.len and one.offset + one.length > row.off:
                return Hole(one.offset, one.offset + one.length)
        size = self._log.length(row.seg) if row.seg in self._log.numbers else 0
        return Hole(size, _NOWHERE) if row.off + row.len > size else None

    def _lose(self, segment: int, hole: Hole, rows: list[Row]) -> None:
        """Have nobody wait for what was there: all of it at once, as each time takes a transaction, and a file for the bytes."""
        name = f"{segment:010}-{hole.start}"
        data = b"" if hole.end == _NOWHERE else self._log.read(segment, hole.start, hole.end - hole.start)
        known = bool(data) and self._folder.has_set_aside(name, data)
        kept = f", kept in {self._folder.set_aside(name, data)}" if data else ""
        with self._index.transaction():
            count = give_up(self._index, self._catalog, rows)
        self.corrections += [Correction(topic, low, high, lost=True) for topic, low, high, _ in runs(rows)]
        if known:
            return
        words, after = say_damaged(count)
        where = f"{hole.end - hole.start} bytes at {hole.start} of segment {segment} {words}"
        if hole.end == _NOWHERE:
            ends = f"ends at {hole.start}" if hole.start else "is not there, or is empty"
            where = f"segment {segment} of the log {ends}: {count} messages lost"
        self._folder.reports.append(f"{where}{kept}{after}")

    # --- what the index lacks ------------------------------------------------------------------------------------

    def _look_into_gap(self, topic: int, low: int, high: int) -> int:
        """Numbers [low, high) without a row: have them indexed if the log has them. Returns where to read on."""
        if not self._catalog.rebuilt:
            self._examine_all()
        row = self._index.next_batch(topic, low)
        if row is None or row.first <= low:
            return low
        try:
            with self._index.transaction():
                self._index.add_batches([Row(topic, low, row.first - low, EMPTIED, 0, 0, 0)])
        except sqlite3.Error:
            pass  # no room: the next process looks into it once more
        return row.first

    def _examine_all(self) -> None:
        for segment in list(self._log.numbers):
            self.examine(segment)

    def examine(self, segment: int, seconds: float = math.inf) -> bool:
        """Have the index name the right place of every record of the segment, unless this process has seen to it.

        Returns whether that is done. After ``seconds`` it is not: the next call goes on, as consumers wait meanwhile."""
        if segment in self._examined:
            return True
        if seconds <= 0 and self._examining.keys() - {segment}:
            return False  # each that is under way holds a part of its file in memory
        until = time.monotonic() + seconds
        broken, items = self._examining.pop(segment) if segment in self._examining else ([], self._indexed(segment))
        for item in items:  # where it raises, all of it is looked at again: what could not be set right must not be passed by
            if isinstance(item, Broken):
                broken.append(item)
            else:
                self._compare(segment, item)
            if time.monotonic() > until:
                self._examining[segment] = broken, items
                return False
        self._examined[segment] = broken
        return True

    def _indexed(self, segment: int) -> Iterator[Found | Broken]:
        """What the segment has as far as the index knows the log."""
        end = self._index.position()
        if end is None or segment > end[0] or segment not in self._log.numbers:
            return iter(())
        return self._log.scan(segment, 0, end[1] if segment == end[0] else None)

    def _compare(self, segment: int, item: Found) -> None:
        batch = item.batch
        if not batch.count or batch.topic not in self._catalog.topics:
            return
        row = self._index.row(batch.topic, batch.first)
        right = Row(batch.topic, batch.first, batch.count, 0, segment, item.offset, item.length)
        if self._lacks(right) if row is None else (row != right and not row.dead and self._record(row) is None):
            self._correct(row, right)

    def _lacks(self, right: Row) -> bool:
        """Whether somebody waits for what the index has no row of. A kill may leave a segment whose rows have gone already."""
        return unfinished.any_of(self._catalog, self._index, right.topic, right.first, right.first + right.n)

    def _correct(self, wrong: Row | None, right: Row) -> None:
        with self._index.transaction():
            self._index.add_batches([right])
        self._catalog.found(right.seg, right.topic, right.first, right.first + right.n)
        counted, end = right.first if wrong is None else wrong.first + wrong.n, right.first + right.n
        if counted != end:  # else what was counted is there, at another place
            self.corrections.append(Correction(right.topic, min(counted, end), max(counted, end), there=counted < end))
        self._say_corrected(right.topic)

    def _say_corrected(self, topic: int) -> None:
        self._wrong = True
        said = f"the index named a wrong place for messages of topic {topic}: corrected from the log"
        if said not in self._folder.reports:
            self._folder.reports.append(said)
