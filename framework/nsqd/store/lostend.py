"""A log that ends before what the index knows: a file system lost its last pages, or somebody cut it off.

The index is kept, so what was finished stays finished. What it knows behind the end of the log is lost, and accounted for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from framework.nsqd.store import unfinished
from framework.nsqd.store.catalog import Catalog
from framework.nsqd.store.index import Index, Row
from framework.nsqd.store.segments import Broken, Segments

_RUN = 10_000
"""Messages that are accounted for at once: as few steps as possible, in little memory."""


def find(log: Segments, position: tuple[int, int]) -> tuple[int, int] | None:
    """The (segment, offset) at which the log ends before ``position``; None when it has all up to there."""
    segment, offset = position
    if segment > log.active:
        return log.active, log.size
    if segment in log.numbers and (size := log.length(segment)) < offset:
        return segment, size
    return None  # a segment that is gone was removed, because all of it was finished


def whole(log: Segments, index: Index, segment: int, size: int) -> int:
    """Where the last whole record of the segment ends."""
    for item in log.scan(segment, index.end_within(segment, size)):
        if isinstance(item, Broken) and item.torn:
            return item.offset
    return size


def give_up(index: Index, catalog: Catalog, rows: Iterable[Row]) -> int:
    """Have nobody wait for what is in ``rows``, ordered by topic and number; how many messages somebody waited for."""
    count = 0
    for topic, low, high, dead in list(runs(rows)):
        count += 0 if dead else unfinished.count(catalog, index, topic, low, high)
        index.mark_damaged(topic, low, high)
    return count


def runs(rows: Iterable[Row]) -> Iterator[tuple[int, int, int, int]]:
    """(topic, low, high, dead) of rows whose numbers follow each other."""
    run: tuple[int, int, int, int] | None = None
    for row in rows:
        if run and run[::3] == (row.topic, row.dead) and run[2] == row.first and row.first - run[1] < _RUN:
            run = (row.topic, run[1], row.first + row.n, row.dead)
            continue
        if run:
            yield run
        run = (row.topic, row.first, row.first + row.n, row.dead)
    if run:
        yield run
