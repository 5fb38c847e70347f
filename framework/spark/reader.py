"""The source's two readers: which rows of the spool there are, which go into a batch, and how tasks read them.

Spark calls everything but ``read`` in one process beside the driver; ``read`` runs in the executors, on a pickled
copy. The broker is only known to the collector, so a broker that is down never fails a query.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from framework.errors import BadSetting
from framework.spark.filters import Pushing, Wanted
from framework.spark.lives import Listing, given_again, last_read, list_spool
from framework.spark.offsets import FIRST, Cursor, Offset, Span, advance, end_of, missing, share, spans, start_of
from framework.spark.options import ReadOptions
from framework.spark.rows import first_since
from framework.spark.sent import Sent, lacks
from framework.spark.tasks import planned, read_rows
from framework.spark.trimming import Trimming
from framework.spool import SpoolError
from framework.spool.faults import in_words
from framework.spool.root import collectors, ensure_epoch, epoch, lives_of
from framework.spool.segment import Segment, cut, highest, parts, times_of
from framework.spool.storage import Location, StorageError
from framework.spool.told import AFTER, BEGINS, number_of, told

if TYPE_CHECKING:
    from framework.spark.collector import Collector

_ROWS_WORTH_A_TASK = 1000
_LOOK_EVERY = 1.0
"""Seconds between two looks into a storage."""
_PATIENCE = 60.0
"""Seconds for which a batch that has begun waits for a storage: Spark cannot stop the query meanwhile."""
_log = logging.getLogger(__name__)


class NsqBatchReader(Sent, DataSourceReader):
    """``spark.read``: all that the spool holds now."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self.wanted = Wanted()

    @property
    def pushFilters(self) -> Pushing:  # noqa: N802 (Spark's name)
        return Pushing(self, DataSourceReader.pushFilters)

    def partitions(self) -> list[InputPartition]:
        root = self._options.spool_dir
        with in_words(root):
            lives, found, life = lives_of(root), list_spool(root), epoch(root)
        if life is None:
            raise BadSetting(_no_spool(root, self._options.advice.spool))
        with in_words(root):
            every = [
                Span(name, one, 0, one.rows)
                for name, segments in found.items()
                for one in self.wanted.of(name, segments, times_of(root / name, segments) if self.wanted.by_times else {})
            ]
        rows = sum(span.rows for span in every)
        return planned(root, every, Offset(life, {}, partitions_wanted(self._options, rows), self._options.max_records, lives))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition, self._options)


class NsqStreamReader(Sent, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``: what the collectors have landed since the last batch."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._collector: Collector | None = None
        self._target: dict[str, Cursor] | None = None
        self._found: Listing = {}
        self._list_at = 0.0
        self._life: str | None = None
        self._lives: Mapping[str, str] = {}
        self._numbers: dict[str, int] = {}
        """Collector -> ``highest``, of the last look."""
        self._waits = False
        """For a storage that does not answer."""
        self._trimming = Trimming(options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's names, here and below)
        root = self._options.spool_dir
        with in_words(root):
            lives = lives_of(root)
            cursors = {name: self._beginning(segments) for name, segments in list_spool(root).items()}
            return Offset(ensure_epoch(root), cursors, 1, self._options.max_records, lives).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_messages
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """With an embedded collector "available" is what the channel holds: it is landed first. A spool that others fill must be
        there: this query does not wait for one, and one that was named wrongly would have no rows for ever. An epoch is not
        enough: a query that waits has made it."""
        root = self._options.spool_dir
        with in_words(root):
            if not self._options.embedded and not collectors(root):
                raise BadSetting(_no_spool(root, self._options.advice.spool))
        self._collect()
        if self._collector is not None:
            self._collector.drain_channel()
        with in_words(self._options.spool_dir):
            self._target = {name: end_of(segments) for name, segments in list_spool(self._options.spool_dir).items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """As far as the next batch goes; ``start`` itself when there is nothing new.

        Raises SpoolError when rows between are lost (and failOnDataLoss), or the collector cannot go on.
        """
        self._collect()
        if self._waits and time.monotonic() < self._list_at:
            return start
        try:
            with in_words(self._options.spool_dir):
                return self._latest(start, limit)
        except StorageError as error:
            if self._target is not None:  # "nothing new" would end the run, with rows left
                raise
            self._wait(error)  # it may be there again in a while, and an error here would end the query
            return start

    def _wait(self, error: StorageError) -> None:
        self._list_at = time.monotonic() + _LOOK_EVERY
        if not self._waits:
            _log.warning("spool %s: %s; the query waits for it", self._options.spool_dir, error)
        self._waits = True

    def _latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = self._continue_from(Offset.of(start))
        self._waits = False
        # Batches up to here are done, and Spark calls commit for the last one only once there is a next: a spool that is full
        # would wait for the one, and the next batch for the spool.
        if begin.cursors != self._trimming.done:
            self._trimming.up_to(begin)
        new = {name: self._new(name, begin.cursors) for name in self._found}
        available = {name: sum(span.rows for span in some) for name, some in new.items() if some}
        if not available:
            return start
        rows = share(limit.max_rows if isinstance(limit, ReadMaxRows) else None, available)
        moved = {name: advance(_fine(new[name], count), count) for name, count in rows.items() if count}
        return Offset(
            begin.epoch,
            {**begin.cursors, **moved},
            partitions_wanted(self._options, sum(rows.values())),
            self._options.max_records,
            {**begin.lives, **self._lives},
            {**begin.read, **read_to(self._found, moved)},
            begin.anew,
        ).as_dict()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """What the progress shows: how far the spool goes, and how the collector's messages ended."""
        ends = {name: list(end_of(segments)) for name, segments in (self._found if self._waits else self._listed()).items()}
        collected = {} if self._collector is None else {"collected": self._collector.counts()}
        return {"collectors": ends, **collected}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of the batch from ``start`` to ``end``: the same for the same two, whatever the options are by now.

        An error here ends the query, so a storage that does not answer is waited for, for as long as ``stop`` may take.
        """
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                with in_words(self._options.spool_dir):
                    found = self._planned(Offset.of(start), Offset.of(end))
            except StorageError as error:
                if time.monotonic() >= until:
                    raise
                self._wait(error)
                time.sleep(_LOOK_EVERY)
            else:
                self._waits = False
                return found

    def _planned(self, first: Offset, last: Offset) -> list[InputPartition]:
        if last.epoch != epoch(self._options.spool_dir):
            self._lost(f"it is not the spool that the checkpoint knows (its epoch was {last.epoch})")
            return []
        lives = lives_of(self._options.spool_dir)  # before the list, as in ``_listed``
        found = list_spool(self._options.spool_dir)
        every: list[Span] = []
        for name, stop in last.cursors.items():
            segments = found.get(name, [])
            if segments and (why := given_again(last, name, segments, lives, self._options.spool_dir / name)):
                self._lost(why)
                continue
            known = first.under(last.lives)
            begin = _begin_of(name, known, last, segments)
            if gone := missing(segments, max(begin, self._least(name, known, last, lives)), stop):
                self._lost(f"segments {gone[0]} to {gone[-1]} of collector {name} are gone")
            every += spans(name, cut(segments, begin.segment, stop.segment), begin, stop)
        return planned(self._options.spool_dir, every, last)

    def _least(self, name: str, first: Offset, last: Offset, lives: Mapping[str, str]) -> Cursor:
        """What no segment of ``name`` is before, in a folder that came since ``first``: its collector made it when the one it had
        was renamed, and went on behind what is in that. If that one was deleted, rows may be lost."""
        came = first.cursors.get(name, FIRST) == FIRST and not first.began_anew(name, last.lives)
        if not came or name not in lives or lives[name] != last.lives.get(name):
            return FIRST
        folder = self._options.spool_dir / name
        if told(folder, AFTER) not in {number_of(life) for life in (*lives.values(), *first.lives.values())}:
            return FIRST
        return Cursor(told(folder, BEGINS) or 1, 0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Delete what no batch will need again, if retention says so."""
        with in_words(self._options.spool_dir):
            self._trimming.up_to(Offset.of(end))

    def stop(self) -> None:
        if self._collector is not None:
            _stop_in_peace()
            self._collector.stop()

    def _beginning(self, segments: list[Segment]) -> Cursor:
        if self._options.from_time is not None:
            return first_since(segments, self._options.from_time)
        return end_of(segments) if self._options.from_latest else start_of(segments)

    def _collect(self) -> None:
        if not self._options.embedded:
            return
        if self._collector is None:
            # Not at the top: executors import this module to read rows, and need neither gevent nor the engine for it.
            try:
                from framework.spark.collector import Collector  # noqa: PLC0415
            except ModuleNotFoundError as error:
                raise lacks(error) from None

            _stop_on_sigterm()
            self._collector = Collector(self._options)
            self._collector.start()
        self._collector.check()

    def _listed(self) -> Listing:
        if time.monotonic() >= self._list_at:
            began = time.monotonic()
            self._life = ensure_epoch(self._options.spool_dir)
            self._lives = lives_of(self._options.spool_dir)  # before the list: what comes in between is of a later life
            self._found = list_spool(self._options.spool_dir)
            self._numbers.clear()
            ended = time.monotonic()
            # Spark asks every 14 ms when idle; a spool that keeps much is slow to list, and may take a tenth of a core. Each look
            # into a storage costs money as well.
            least = 0.0 if isinstance(self._options.spool_dir, Path) else _LOOK_EVERY
            self._list_at = ended + max(least, 10 * (ended - began))
        return self._found

    def _continue_from(self, start: Offset) -> Offset:
        self._listed()  # once: another look may be at another life
        current = self._life
        assert current is not None
        if start.epoch != current:
            self._lost(f"it is not the spool that the checkpoint knows (its epoch was {start.epoch})")
            cursors = {name: start_of(segments) for name, segments in self._found.items()}
            return Offset(current, cursors, 1, self._options.max_records)
        start = start.under(self._lives)
        anew = []
        for name, cursor in start.cursors.items():
            found = self._found.get(name, [])
            if found and (why := given_again(start, name, found, self._lives, self._options.spool_dir / name)):
                self._lost(why)
                anew.append(name)
                continue
            if cursor <= end_of(found):
                continue
            if cursor > Cursor(self._highest(name) + 1, 0):
                self._lost(f"segments before {cursor.segment} of collector {name} are gone, and its numbers began anew")
                anew.append(name)
            elif cursor.row:  # the newest was removed by hand, and what comes has higher numbers
                self._lost(f"segment {cursor.segment} of collector {name} is gone")
        return start.beginning_anew(anew)

    def _highest(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = highest(self._options.spool_dir / name, self._found.get(name, []))
        return self._numbers[name]

    def _new(self, name: str, cursors: Mapping[str, Cursor]) -> list[Span]:
        segments = self._found[name]
        end = end_of(segments)
        if self._target is not None:
            end = min(end, self._target.get(name, Cursor(0, 0)))
        begin = cursors.get(name, FIRST)  # of one that came later, all: some of it may have been deleted by now
        return spans(name, cut(segments, begin.segment, end.segment), begin, end)

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise SpoolError(
                f"spool {self._options.spool_dir}: {what}; rows are lost to this query: put back what was there, or "
                f"{self._options.advice.lost}"
            )


def _no_spool(root: Location, option: str) -> str:
    return f"option {option}={str(root)!r}: there is no spool in this folder"


def read_to(found: Listing, cursors: Mapping[str, Cursor]) -> dict[str, str]:
    """What an offset with these ``cursors`` keeps of the segments that it has read last."""
    every = {name: last_read(found.get(name, []), cursor) for name, cursor in cursors.items()}
    return {name: known for name, known in every.items() if known}


def _begin_of(name: str, first: Offset, last: Offset, segments: list[Segment]) -> Cursor:
    """Where the batch from ``first`` to ``last`` begins: as ``_latest`` had it."""
    if first.epoch != last.epoch:
        return start_of(segments)
    begin = first.cursors.get(name, FIRST)
    # Offsets of earlier versions do not say whose numbers began anew.
    is_anew = first.began_anew(name, last.lives) and start_of(segments) < begin
    return FIRST if name in last.anew or is_anew or begin > last.cursors[name] else begin


def _fine(some: list[Span], rows: int) -> list[Span]:
    """``some``, with its parts in place of a run in which the first ``rows`` rows end."""
    found: list[Span] = []
    for span in some:
        if span.segment.first is not None and 0 < rows < span.rows:
            found += [Span(span.collector, part, 0, part.rows) for part in parts(span.segment)]
        else:
            found.append(span)
        rows -= span.rows
    return found


def partitions_wanted(options: ReadOptions, rows: int) -> int:
    """The least partitions of a batch of ``rows``: as the options say, a core each while it is worth a task."""
    if options.min_partitions is not None:
        return options.min_partitions
    return max(1, min(options.parallelism or os.cpu_count() or 1, rows // _ROWS_WORTH_A_TASK))


def _stop_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit: it is all that Spark sends when a query stops, and kills before ``stop`` is called."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _leave)


def _stop_in_peace() -> None:
    """No signal ends ``stop`` in the middle: Spark sends it twice, and where its JVM was killed, who stops the service may."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _leave(signum: int, frame: FrameType | None) -> None:
    _stop_in_peace()
    raise SystemExit(128 + signum)
