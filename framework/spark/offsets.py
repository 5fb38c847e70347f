"""Offsets and the planning of reads, as pure functions: no Spark, no disk.

An offset says for each collector which row comes next. Everything that a plan depends on is in it, because Spark
plans a batch anew after a crash, perhaps with other options, and must get the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from framework.spool.segment import Segment


class Cursor(NamedTuple):
    """The next row to read: the segment's number, and the row in it (0 is its first)."""

    segment: int
    row: int


FIRST = Cursor(1, 0)
"""Of a collector that has landed nothing, or whose numbers began anew."""


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a query has read a spool; ``as_dict`` is what Spark keeps in its checkpoint."""

    epoch: str
    cursors: Mapping[str, Cursor]
    min_partitions: int
    max_records: int
    """The most rows in one partition."""
    lives: Mapping[str, str] = field(default_factory=dict)
    """Collector -> which life of its folder the cursor is in, where it is known: one that was emptied by hand has another."""
    read: Mapping[str, str] = field(default_factory=dict)
    """Collector -> what tells the segment of the last row before the cursor from another of its number, where it is known."""
    anew: Sequence[str] = ()
    """The collectors of which the batch that ends here has all that is there, whatever was read before."""

    def as_dict(self) -> dict[str, Any]:
        lives = {"lives": {name: self.lives[name] for name in sorted(self.lives)}} if self.lives else {}
        return {
            "epoch": self.epoch,
            "collectors": {name: list(self.cursors[name]) for name in sorted(self.cursors)},
            **lives,
            **({"read": {name: self.read[name] for name in sorted(self.read)}} if self.read else {}),
            **({"anew": sorted(self.anew)} if self.anew else {}),
            "minPartitions": self.min_partitions,
            "maxRecordsPerPartition": self.max_records,
        }

    @classmethod
    def of(cls, known: Mapping[str, Any]) -> Offset:
        cursors = {name: Cursor(*cursor) for name, cursor in known["collectors"].items()}
        later = known.get("lives", {}), known.get("read", {}), known.get("anew", ())  # earlier versions had none of these
        return cls(known["epoch"], cursors, known["minPartitions"], known["maxRecordsPerPartition"], *later)

    def began_anew(self, name: str, lives: Mapping[str, str]) -> bool:
        """Whether what ``name`` has there, by ``lives``, is none of what this is an offset in."""
        return name in self.lives and lives.get(name, self.lives[name]) != self.lives[name]

    def under(self, lives: Mapping[str, str]) -> Offset:
        """This, with each collector under the name that its folder has by ``lives``: somebody may have renamed it."""
        names = {life: name for name, life in lives.items()}
        new = {name: names[life] for name, life in self.lives.items() if names.get(life, name) != name}
        known = {*self.cursors, *self.lives} - new.keys()
        new = {old: name for old, name in new.items() if name not in known}  # else another one was removed for it
        if not new:
            return self
        return replace(
            self,
            cursors={new.get(name, name): cursor for name, cursor in self.cursors.items()},
            lives={new.get(name, name): life for name, life in self.lives.items()},
            read={new.get(name, name): known for name, known in self.read.items()},
        )

    def beginning_anew(self, some: Sequence[str]) -> Offset:
        """What a batch begins with that has all that is there of the collectors ``some``."""
        cursors = {**self.cursors, **dict.fromkeys(some, FIRST)}
        read = {name: known for name, known in self.read.items() if name not in some}
        return replace(self, cursors=cursors, read=read, anew=tuple(some), min_partitions=1)


class Span(NamedTuple):
    """The rows ``first`` to ``stop`` (exclusive) of one segment."""

    collector: str
    segment: Segment
    first: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.first


def end_of(segments: Sequence[Segment]) -> Cursor:
    """Behind the last row there is."""
    return Cursor(segments[-1].number + 1, 0) if segments else FIRST


def start_of(segments: Sequence[Segment]) -> Cursor:
    return Cursor(segments[0].begins, 0) if segments else FIRST


def spans(collector: str, segments: Sequence[Segment], start: Cursor, end: Cursor) -> list[Span]:
    """The rows from ``start`` up to ``end``, as far as their segments are there. A run that holds one of both is in its parts."""
    found = []
    for segment in segments:
        first = start.row if segment.begins == start.segment else 0
        stop = end.row if segment.begins == end.segment else segment.rows
        if start.segment <= segment.begins <= end.segment and first < stop:
            found.append(Span(collector, segment, first, stop))
    return found


def missing(segments: Sequence[Segment], start: Cursor, end: Cursor) -> list[int]:
    """The numbers of the segments from ``start`` up to ``end`` that are not there."""
    last = end.segment if end.row else end.segment - 1
    there = {
        number for segment in segments for number in range(max(segment.begins, start.segment), min(segment.number, last) + 1)
    }
    return [number for number in range(start.segment, last + 1) if number not in there]


def advance(some: Sequence[Span], rows: int) -> Cursor:
    """The cursor behind the first ``rows`` rows of ``some``, which is not empty; ``rows`` is at least 1."""
    for span in some:
        if rows < span.rows:
            return Cursor(span.segment.number, span.first + rows)
        rows -= span.rows
        if rows == 0:
            break
    whole = span.stop == span.segment.rows
    return Cursor(span.segment.number + 1, 0) if whole else Cursor(span.segment.number, span.stop)


def share(limit: int | None, available: Mapping[str, int]) -> dict[str, int]:
    """Divide ``limit`` rows among collectors so that a busy one does not starve the others."""
    if limit is None or limit >= sum(available.values()):
        return dict(available)
    shares: dict[str, int] = {}
    waiting = sorted(available, key=lambda name: (available[name], name))
    for index, name in enumerate(waiting):  # the smallest first: what it does not need goes to the rest
        shares[name] = min(available[name], limit // (len(waiting) - index))
        limit -= shares[name]
    return shares


def split(some: Sequence[Span], parts: int) -> list[list[Span]]:
    """Cut ``some``, in order, into ``parts`` lists of about as many rows each; none is empty."""
    rows = sum(span.rows for span in some)
    parts = min(parts, rows)
    bounds = [rows * (part + 1) // parts for part in range(parts)]
    lists: list[list[Span]] = [[] for _ in range(parts)]
    part = done = 0
    for span in some:
        first = span.first
        while first < span.stop:
            stop = min(span.stop, first + bounds[part] - done)
            lists[part].append(span._replace(first=first, stop=stop))
            done += stop - first
            first = stop
            part += done == bounds[part]
    return lists


def partitions_for(rows: int, offset: Offset) -> int:
    """How many partitions a batch of ``rows`` rows has."""
    return max(offset.min_partitions, -(-rows // offset.max_records))
