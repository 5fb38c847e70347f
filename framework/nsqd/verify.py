"""``workers nsqd --verify``: whether a data folder is sound. Every record is read, every row of the index held against it.

Nothing is changed. What damage was accounted for by an earlier start, and what was never confirmed, is no fault.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from framework.errors import FrameworkError
from framework.nsqd.options import Options
from framework.nsqd.slices import Slices
from framework.nsqd.store.index import Row
from framework.nsqd.store.segments import Broken, Found
from framework.nsqd.store.survey import Survey


class NotSound(FrameworkError):
    """Something is wrong with the folder; the sentence says how much."""


class Verify:
    """A daemon that looks once. ``run`` raises NotSound, FolderInUse, FolderUnusable."""

    def __init__(self, options: Options) -> None:
        self._path = options.data_path
        self._stopping = False

    def stop(self) -> None:
        """May be called from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        with Survey(self._path) as survey:
            check = Check(survey)
            faults = check.reported()
            for fault in check.faults():
                if self._stopping:
                    raise NotSound(f"{self._path}: stopped before all of it was read")
                if fault:
                    faults.append(fault)
        for note in check.notes:
            sys.stdout.write(f"note: {note}\n")
        for fault in faults:
            sys.stdout.write(f"fault: {fault}\n")
        if faults:
            words = f"{self._path} is not sound, faults: {len(faults)}; a start mends what it can; nothing was changed"
            raise NotSound(words)
        sys.stdout.write(f"{self._path} is sound: {check.read}\n")


class Read(NamedTuple):
    """How much was read."""

    segments: int = 0
    records: int = 0
    messages: int = 0
    size: int = 0

    def __str__(self) -> str:
        return f"{self.segments:,} segments, {self.records:,} records, {self.messages:,} messages, {self.size:,} bytes"


class Check:
    """Goes through a folder."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._slices = Slices()
        self.read = Read()
        self.notes: list[str] = []
        """What is to be known and no fault."""

    def reported(self) -> list[str]:
        """What a start would find wrong."""
        self.notes += [f"a start says: {one}" for one in self._survey.reports if "never confirmed" in one]
        return [one for one in self._survey.reports if "never confirmed" not in one]

    def faults(self) -> Iterator[str]:
        """What is wrong besides, a sentence each; "" now and then, where nothing is."""
        for segment in self._survey.log.numbers:
            yield from self._segment(segment)
        for segment in self._survey.catalog.ranges.keys() - set(self._survey.log.numbers):
            if count := sum(row.n for row in self._survey.index.placed(segment)):
                yield f"segment {segment} of the log is not there, with {count} messages that the index names"
        if count := self._survey.index.placeless():
            yield f"the index names no segment for {count} messages"
        yield from self._missing()

    def _segment(self, segment: int) -> Iterator[str]:
        survey, rows = self._survey, {row.off: row for row in self._survey.index.placed(segment)}
        torn = survey.log.size if segment == survey.log.active else None
        for item in survey.log.scan(segment):
            self._slices.breathe()
            if isinstance(item, Broken):
                yield "" if item.offset == torn else self._broken(segment, item)
            else:
                yield self._record(item, rows.pop(item.offset, None))
        for row in rows.values():
            yield f"the index names {row.off} of segment {segment} for {row.n} messages, and there is no such record"
        self.read = self.read._replace(segments=self.read.segments + 1, size=self.read.size + survey.log.length(segment))

    def _broken(self, segment: int, broken: Broken) -> str:
        data = self._survey.log.read(segment, broken.offset, broken.length)
        where = f"{broken.length} bytes at {broken.offset} of segment {segment} are damaged"
        if self._survey.folder.has_set_aside(f"{segment:010}-{broken.offset}", data):
            self.notes.append(f"{where}: accounted for by an earlier start, kept in bad/")
            return ""
        return where

    def _record(self, found: Found, row: Row | None) -> str:
        batch, index = found.batch, self._survey.index
        self.read = self.read._replace(records=self.read.records + 1, messages=self.read.messages + batch.count)
        if not batch.count or batch.topic not in self._survey.catalog.topics:
            return ""
        if row is not None:
            right = (row.topic, row.first, row.n, row.len) == (batch.topic, batch.first, batch.count, found.length)
            return "" if right else f"the index takes the record at {found.offset} for another"
        named = index.next_batch(batch.topic, batch.first)  # it was moved, emptied, or accounted for
        return "" if named and named.first <= batch.first else f"the index lacks {batch.count} messages of topic {batch.topic}"

    def _missing(self) -> Iterator[str]:
        """What a channel waits for and nobody has."""
        for topic in self._survey.catalog.topics.values():
            for channel in topic.channels.values():
                for seq in channel.retries:
                    self._slices.breathe()
                    row = self._survey.index.next_batch(topic.id, seq)
                    if row is None or not row.first <= seq < row.first + row.n or row.dead:
                        yield f"channel {channel.name!r} of topic {topic.name!r} waits for message {seq:016x}, which is not there"
                    else:
                        yield ""
