"""The storage of the embedded nsqd: the log is the truth, the index says where and how far.

Five verbs: ``Store(folder)`` opens and recovers, ``append`` is durable on return, ``read``, ``save`` (lazy), and a
Declaration with ``dropped`` drops. ``append`` may run in one thread while ``read`` and ``save`` run in another.

What is always so, between any two writes, stands in INVARIANTS.md beside this file, each with the tests that hold it.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from framework.nsqd.store import formats, misnamed, reading, recovery, saving, unfinished
from framework.nsqd.store.catalog import Catalog
from framework.nsqd.store.clock import Clock
from framework.nsqd.store.compaction import Compactor
from framework.nsqd.store.files import check_room, explain
from framework.nsqd.store.folder import Folder, FolderUnusable
from framework.nsqd.store.index import Index
from framework.nsqd.store.log import SEGMENT_BYTES, Log, Syncing
from framework.nsqd.store.merge import merge
from framework.nsqd.store.reading import Reader
from framework.nsqd.store.record import Batch
from framework.nsqd.store.reserve import Reserve
from framework.nsqd.store.rolling import roll
from framework.nsqd.store.state import ChannelSave, Correction, Declare, Entry, TopicSave, TopicState

RESERVE_BYTES = 64 << 20
"""Free space below which nothing is published, so that the index can still note what is finished."""
_SWEEP_SECONDS = 1.0
_EXAMINE_SECONDS = 0.05
"""Spent in one sweep on reading segments that may go. 64 MiB of messages of 200 bytes, each published alone, take 2 s."""
_ROLL_BYTES = 1 << 20
"""A segment of which nothing is needed is replaced when it is bigger than this."""


class Store:
    """The messages and the channels' states in one folder. Raises FolderInUse, FolderUnusable."""

    def __init__(self, path: Path, syncing: Syncing = Syncing()) -> None:  # noqa: B008 - a tuple never changes
        self.folder = Folder(path)
        self.reports: list[str] = self.folder.reports
        """Sentences about what was found damaged; the user logs and empties it."""
        self.clock = Clock(path / "clock")
        self.reserve = Reserve(path / "reserve")
        self._writing = threading.Lock()
        self._swept = 0.0
        self._seen = (0, 0)
        with ExitStack() as undo:
            undo.callback(self.folder.close)
            try:
                formats.check_salt(path, self.folder.salt)
                self.reports += misnamed.put_back(path / "log", self.folder.salt)
                self.log = Log(path / "log", self.folder.salt, syncing)
                undo.callback(self.log.close)
                self.index: Index = self.folder.open_index()
                undo.callback(self.index.close)
                self.catalog = Catalog((self.log.active, 0))
                renamed = recovery.recover(self.folder, self.log, self.index, self.catalog)
                self._reader = Reader(self.folder, self.log, self.index, self.catalog)
                self._compactor = Compactor(self.log, self.index, self.catalog, self._reader.checked, self.move)
                self._declare(renamed)
            except (OSError, sqlite3.Error) as error:
                raise FolderUnusable(explain(path, error)) from error
            undo.pop_all()
        self.clock.keep()
        self._keep_reserve()

    def _declare(self, renamed: Sequence[TopicState]) -> None:
        """The log knows them by their new names from now on."""
        if renamed:
            try:
                self.append([Declare(topic.id, topic.declaration()) for topic in renamed])
            except OSError:
                pass  # no room: without its index it would give them the same names again

    @property
    def topics(self) -> dict[int, TopicState]:
        """By topic number. At start: all that was found; then kept by ``append`` and ``save``."""
        return self.catalog.topics

    @property
    def corrections(self) -> list[Correction]:
        """Where the counts that the user knows are wrong; the user takes them out."""
        return self._reader.corrections

    def has_number(self, topic: int) -> bool:
        """Whether the log may have records of a topic with this number, of one that is gone too: it is not to be given again."""
        return self.catalog.has_number(topic)

    def close(self) -> None:
        """Save what is known and let the folder go, also when that fails. Raises OSError, sqlite3.Error."""
        with ExitStack() as closing:
            for last in (self.folder.close, self.log.close, self.index.close, self.flush):
                closing.callback(last)
            self.clock.keep()
            with self._writing:
                self._sync()

    def _sync(self) -> None:
        """Make durable what was confirmed before that. Raises OSError; it stays due."""
        if self.log.suspect and self.log.waits:
            self._roll()
        else:
            self.log.sync()

    # --- append ----------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry | Declare]) -> list[Batch]:
        """Write the group with one sync; returns its records, messages merged and numbered.

        Durable on return, unless ``syncing`` loosens it. Declarations alone may use what a full disk has in reserve.
        Raises OSError (a full disk, a failed sync): then nothing of the group is kept.
        """
        publishes = any(isinstance(one, Entry) for one in entries)
        with self._writing:
            if publishes:
                self._require_room()
            try:
                return self._append(entries, full=publishes and self.log.written >= SEGMENT_BYTES)
            except OSError as error:
                if publishes or error.errno != errno.ENOSPC or not self.reserve.spend():
                    raise
            return self._append(entries, full=False)

    def _append(self, entries: Sequence[Entry | Declare], *, full: bool) -> list[Batch]:
        if not self.folder.has_changes and any(isinstance(one, Declare) and one.what.changes for one in entries):
            self.folder.allow_changes()
        if self.log.suspect or full:
            self._roll()
        batches = self.catalog.number(merge(entries))
        try:
            offset = self.log.write(batches)
        except OSError:
            if self.log.suspect:
                self.catalog.use_up(batches)
            raise
        self.catalog.accept(batches, self.log.active, offset)
        return batches

    def move(self, batches: Sequence[Batch]) -> None:
        """Write these records once more, at the end of the log: a segment that has them can go afterwards. Raises OSError."""
        if not batches:
            return
        with self._writing:
            if self.log.suspect or self.log.written >= SEGMENT_BYTES:
                self._roll()
            offset = self.log.write(batches)
            self.log.sync()  # whatever publishers are content with: the old place will go
            self.catalog.accept(batches, self.log.active, offset)

    def try_to_write(self, size: int) -> None:
        """Begin a segment where so many bytes of messages can be written. Raises OSError where not; nothing has changed then."""
        with self._writing:
            self._require_room()
            check_room(self.folder.path / "probe", size)  # else a segment would begin at each try, where its head alone fits
            self._roll()

    def _has_room(self) -> bool:
        disk = os.statvfs(self.folder.path)
        return disk.f_bavail * disk.f_frsize >= min(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // 16)

    def _keep_reserve(self) -> None:
        if not self.reserve.whole and self._has_room():
            self.reserve.fill()

    def _require_room(self) -> None:
        if not self._has_room():
            raise OSError(errno.ENOSPC, "the disk is full but for the reserve that finishing messages needs")

    def _roll(self) -> None:
        roll(self.log, self.catalog)

    # --- save --------------------------------------------------------------------------------------------------

    def save(self, topics: Sequence[TopicSave] = (), channels: Sequence[ChannelSave] = ()) -> None:
        """Keep these states, in one transaction with the places of what was appended before.

        Raises sqlite3.Error; then nothing was kept, and the caller saves again later.
        """
        new = self.catalog.take_unindexed()
        if not (new.rows or new.declared or topics or channels):
            return
        known = [(topic, save) for save in topics if (topic := self.topics.get(save.id))]
        kept = [(channel, save, list(save.inflight)) for save in channels if (channel := self.catalog.channel(save))]
        try:
            with self.index.transaction():
                self.index.put_batches(new.rows, new.position)
                saving.put_declared(self.index, self.topics, new.declared, self.log.active)
                saving.put_grown(self.index, self.topics, {row.topic for row in new.rows})
                for topic, topic_save in known:
                    saving.put_topic(self.index, topic, topic_save)
                for channel, channel_save, inflight in kept:
                    saving.put_channel(self.index, channel, channel_save, inflight)
        except BaseException:
            self.catalog.give_back(new)
            raise
        self.catalog.keep(known, kept)

    def flush(self) -> None:
        """Have the index know all that was appended. Raises sqlite3.Error."""
        self.save()

    @property
    def untidy(self) -> bool:
        """Whether ``tidy`` has something to do; it touches no file."""
        return self.clock.is_to_be_kept or self.log.due or time.monotonic() - self._swept > _SWEEP_SECONDS

    def tidy(self) -> None:
        """What is due besides: a sync that publishers did not wait for, a sweep. Raises sqlite3.Error, OSError; comes again."""
        if self.clock.is_to_be_kept:
            self.clock.keep()
        if self.log.due:
            with self._writing:
                self._sync()
        if time.monotonic() - self._swept > _SWEEP_SECONDS:
            self.sweep()

    # --- read --------------------------------------------------------------------------------------------------

    def read(self, topic: int, seq: int, max_bytes: int) -> list[Batch]:
        """The batch that holds ``seq`` or else follows it, and those behind it up to ``max_bytes`` (at least one).

        Emptied ones are left out. What is damaged on the disk is set aside, reported and left out.
        Raises sqlite3.Error when it cannot be known yet where it lies.
        """
        try:
            self.flush()
        except sqlite3.Error:
            # Where the disk has no byte left, what was indexed before is read all the same: consumers go on.
            if found := self._reader.read(topic, seq, max_bytes):
                return found
            raise
        return self._reader.read(topic, seq, max_bytes)

    def bodies(self, topic: int, seqs: Iterable[int], max_bytes: int) -> dict[int, tuple[int, bytes] | None]:
        """(time of publishing in ns, body) of each of these messages, in this order; None for one that the log does not have.

        The one that makes it ``max_bytes`` is the last: those behind are not in the answer."""
        return reading.bodies(self.read, topic, seqs, max_bytes)

    # --- retention -----------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Unlink the segments of which no channel needs a message any more, and rewrite one that is kept for a few."""
        self._swept = time.monotonic()
        self._keep_reserve()
        self._roll_if_finished()
        for segment in list(self.log.numbers[:-1]):
            if not self._is_of_use(segment) and self._knows(segment) and not self._is_of_use(segment):
                self._remove(segment)
        self._compact()
        self.index.shrink()

    def _knows(self, segment: int) -> bool:
        """Whether the index can be believed when it says that the segment is of no use. One that an earlier process wrote is
        read once before that: rows may name another segment, and then only the log knows what this one has."""
        return segment > self.log.inherited or self._reader.examine(segment, self._swept + _EXAMINE_SECONDS - time.monotonic())

    def _is_of_use(self, segment: int) -> bool:
        return unfinished.any_in(self.catalog, self.index, segment)

    def _compact(self) -> None:
        try:
            segment = self._compactor.step(self.log.numbers[:-1])
        except OSError:
            return  # no room for what is to be moved: a later sweep tries again
        if segment is not None:
            self.flush()
            if self._compactor.plan(segment) == [] and self._knows(segment) and self._compactor.plan(segment) == []:
                self._remove(segment)

    def _roll_if_finished(self) -> None:
        """Begin a new segment when the active one is of no use, or nearly so and nobody publishes."""
        before, self._seen = self._seen, self.catalog.position
        if self.log.written <= _ROLL_BYTES:  # of thousands of topics the head alone is more: the next would be no smaller
            return
        spare = before == self._seen and self._compactor.look(self.log.active) is not None
        if self._writing.acquire(blocking=False):
            try:
                settled, idle = self.catalog.is_indexed_at(self._seen)
                if settled and ((spare and idle) or not self._is_of_use(self.log.active)):
                    self._roll()
            except OSError:
                pass  # no room for a new one now: a later sweep tries again
            finally:
                self._writing.release()

    def _remove(self, segment: int) -> None:
        # Synced before the unlink: an index that came back older would name a file that is gone.
        with self.index.transaction(synced=True):
            for topic, (low, high) in self.catalog.ranges_in(segment).items():
                self.index.remove_batches(topic, segment, low, high)
            self.index.forget_retired(next((one for one in self.log.numbers if one != segment), segment))
        self.log.remove(segment)
        self.catalog.removed(segment, self.index.retired())
