"""The storage of the embedded nsqd: the log is the truth, the index says where and how far.

Five verbs: ``Store(folder)`` opens and recovers, ``append`` is durable on return, ``read``, ``save`` (lazy), and a
Declaration with ``dropped`` drops. ``append`` may run in one thread while ``read`` and ``save`` run in another.

**Nothing saved may be ahead of what it rests on.** A position (of a topic, of a channel) says that what is below it is
somebody else's, or finished, and the sweep unlinks it. So:
- A declaration comes before the messages of its topic, in the log as in the group that is appended.
- A topic's ``pumped`` is saved only when the channels that have what is below it are declared, and a channel's state only
  while it is: neither is saved of what was declared and is not committed (``framework.nsqd.topic``).
- Names, channels and pauses reach the index from declarations alone, never from a save.
- What the store has in memory, which the sweep goes by, moves after the transaction, and not at all when that failed.
- A segment is unlinked after a synced transaction without its rows.
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

from framework.nsqd.store import misnamed, reading, record, recovery, saving
from framework.nsqd.store.clock import Clock
from framework.nsqd.store.compaction import Compactor
from framework.nsqd.store.files import explain
from framework.nsqd.store.folder import Folder, FolderUnusable
from framework.nsqd.store.index import Index, Row
from framework.nsqd.store.log import SEGMENT_BYTES, Broken, Log, Syncing
from framework.nsqd.store.merge import merge
from framework.nsqd.store.record import HEADER_BYTES, Batch, Declaration
from framework.nsqd.store.reserve import Reserve
from framework.nsqd.store.state import ChannelSave, ChannelState, Correction, Declare, Entry, TopicSave, TopicState

RESERVE_BYTES = 64 << 20
"""Free space below which nothing is published, so that the index can still note what is finished."""
_SWEEP_SECONDS = 1.0
_ROLL_BYTES = 1 << 20
"""A segment of which nothing is needed is replaced when it is bigger than this."""


class Store:
    """The messages and the channels' states in one folder. Raises FolderInUse, FolderUnusable."""

    def __init__(self, path: Path, syncing: Syncing = Syncing()) -> None:  # noqa: B008 - a tuple never changes
        self.folder = Folder(path)
        self.reports: list[str] = self.folder.reports
        """Sentences about what was found damaged; the user logs and empties it."""
        self.topics: dict[int, TopicState] = {}
        """By topic number. At start: all that was found; then kept by ``append`` and ``save``."""
        self.clock = Clock(path / "clock")
        self.reserve = Reserve(path / "reserve")
        self.ranges: dict[int, dict[int, tuple[int, int]]] = {}
        """Segment -> topic -> [lowest sequence number, end) of what it holds."""
        self.examined: dict[int, list[Broken]] = {}
        """Segments of which every row of the index was held against the log, and what is damaged there."""
        self.corrections: list[Correction] = []
        """Where the counts that the user knows are wrong; the user takes them out."""
        self.retired: set[int] = set()
        """Numbers of topics that are gone, while records of the log may have them."""
        self.rebuilt = False
        """The index was made anew from the whole log: what it does not have is not there."""
        self._writing = threading.Lock()
        self._sharing = threading.Lock()
        self._rows: list[Row] = []
        self._declared: set[int] = set()
        self._swept = 0.0
        self._seen = (0, 0)
        self._compactor = Compactor(self)
        with ExitStack() as undo:
            undo.callback(self.folder.close)
            try:
                self.reports += misnamed.put_back(path / "log", self.folder.salt)
                self.log = Log(path / "log", self.folder.salt, syncing)
                undo.callback(self.log.close)
                self.index: Index = self.folder.open_index()
                undo.callback(self._close_index)
                self._position = (self.log.active, 0)
                self._position = recovery.recover(self)
            except (OSError, sqlite3.Error) as error:
                raise FolderUnusable(explain(path, error)) from error
            undo.pop_all()
        self.clock.keep()
        self._keep_reserve()

    def _close_index(self) -> None:
        """The one that there is by then: the recovery may have made it anew."""
        self.index.close()

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

    def _append(self, entries: Iterable[Entry | Declare], *, full: bool) -> list[Batch]:
        if self.log.suspect or full:
            self._roll()
        batches = self._number(merge(entries))
        try:
            offset = self.log.write(batches)
        except OSError:
            if self.log.suspect:
                self._use_up(batches)
            raise
        with self._sharing:
            self._accept(batches, offset)
        return batches

    def _use_up(self, batches: Iterable[Batch]) -> None:
        """Give these numbers to nobody else: a power cut may bring back what could not be written for certain, nor removed."""
        for batch in batches:
            if topic := self.topics.get(batch.topic):
                topic.next = max(topic.next, batch.end)

    def move(self, batches: Sequence[Batch]) -> None:
        """Write these records once more, at the end of the log: a segment that has them can go afterwards. Raises OSError."""
        if not batches:
            return
        with self._writing:
            if self.log.suspect or self.log.written >= SEGMENT_BYTES:
                self._roll()
            offset = self.log.write(batches)
            self.log.sync()  # whatever publishers are content with: the old place will go
            with self._sharing:
                self._accept(batches, offset)

    def _has_room(self) -> bool:
        disk = os.statvfs(self.folder.path)
        return disk.f_bavail * disk.f_frsize >= min(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // 16)

    def _keep_reserve(self) -> None:
        if not self.reserve.whole and self._has_room():
            self.reserve.fill()

    def _require_room(self) -> None:
        if not self._has_room():
            raise OSError(errno.ENOSPC, "the disk is full but for the reserve that finishing messages needs")

    def _number(self, entries: Iterable[Entry | Declare]) -> list[Batch]:
        now, nexts, batches = time.time_ns(), {}, []
        for entry in entries:
            topic = entry.topic
            if topic not in nexts:
                state = self.topics.get(topic)
                # From the clock, so that a topic deleted and made anew never repeats an id that clients may know.
                nexts[topic] = state.next if state else now
            if isinstance(entry, Declare):
                # Twice: without it, and without the index, nobody could tell whose the topic's messages are.
                batches += [record.declare(topic, nexts[topic], now, entry.what)] * 2
            else:
                batches.append(Batch(topic, nexts[topic], entry.count, now, entry.due, entry.payload))
                nexts[topic] += entry.count
        return batches

    def _accept(self, batches: Iterable[Batch], offset: int) -> None:
        for batch in batches:
            length = HEADER_BYTES + len(batch.payload)
            self.take(batch, self.log.active, offset, length)
            offset += length
        self._position = (self.log.active, offset)

    def take(self, batch: Batch, segment: int, offset: int, length: int) -> None:
        """Note one record of the log, just written or met by the recovery."""
        if batch.count == 0:
            self._apply(batch)
        elif (topic := self.topics.get(batch.topic)) is not None:
            topic.next = max(topic.next, batch.end)
            self._rows.append(Row(batch.topic, batch.first, batch.count, 0, segment, offset, length))
            widen(self.ranges.setdefault(segment, {}), batch.topic, batch.first, batch.end)

    def _apply(self, batch: Batch) -> None:
        said = record.declaration(batch)
        self._declared.add(batch.topic)
        if said.dropped:
            self.topics.pop(batch.topic, None)
            self.retired.add(batch.topic)
            return
        topic = self.topics.setdefault(batch.topic, TopicState(batch.topic, said.name, batch.first, said.pumped or batch.first))
        topic.next = max(topic.next, batch.first)  # what had the numbers below may be gone, and they are not used again
        topic.name, topic.paused = said.name, said.paused
        known = {one.id: one for one in topic.channels.values()}
        topic.channels = {
            # A channel that is known keeps its own cursor: what a later segment's head says may be further
            # than messages of older segments that are still in flight.
            name: known.get(one.id) or ChannelState(one.id, name, one.cursor, one.paused)
            for name, one in said.channels.items()
        }
        for name, one in said.channels.items():
            topic.channels[name].paused = one.paused

    def _roll(self) -> None:
        """Begin a segment; its head says again all that a rebuild needs, as older ones will be removed."""
        now = time.time_ns()
        heads = [record.declare(topic.id, topic.next, now, topic.declaration()) for topic in list(self.topics.values())]
        # The segment that says so may go before an older one that still names them.
        heads += [record.declare(number, now, now, Declaration("", dropped=True)) for number in list(self.retired)]
        # After a failed sync the old segment may lack what was confirmed before it. The heads have what it declares.
        again = [batch for batch in self.log.unsynced() if batch.count] if self.log.suspect else []
        start = self.log.roll(heads * 2, again)
        with self._sharing:
            self._accept(again, start)

    # --- save --------------------------------------------------------------------------------------------------

    def save(self, topics: Sequence[TopicSave] = (), channels: Sequence[ChannelSave] = ()) -> None:
        """Keep these states, in one transaction with the places of what was appended before.

        Raises sqlite3.Error; then nothing was kept, and the caller saves again later.
        """
        with self._sharing:
            rows, self._rows = self._rows, []
            declared, self._declared = self._declared, set()
            position = self._position
        if not (rows or declared or topics or channels):
            return
        known = [(topic, save) for save in topics if (topic := self.topics.get(save.id))]
        kept = [(channel, save, list(save.inflight)) for save in channels if (channel := self._state(save))]
        try:
            with self.index.transaction():
                self.index.put_batches(rows, position)
                saving.put_declared(self.index, self.topics, declared, self.log.active)
                saving.put_grown(self.index, self.topics, {row.topic for row in rows})
                for topic, topic_save in known:
                    saving.put_topic(self.index, topic, topic_save)
                for channel, channel_save, inflight in kept:
                    saving.put_channel(self.index, channel, channel_save, inflight)
        except BaseException:
            with self._sharing:
                self._rows = rows + self._rows
                self._declared |= declared
            raise
        for topic, topic_save in known:
            topic.pumped = topic_save.pumped
        for channel, channel_save, inflight in kept:
            channel.cursor, channel.inflight = channel_save.cursor, inflight

    def flush(self) -> None:
        """Have the index know all that was appended. Raises sqlite3.Error."""
        self.save()

    def tidy(self) -> None:
        """What is due besides: a sync that publishers did not wait for, a sweep. Raises sqlite3.Error, OSError; comes again."""
        self.clock.keep_sometimes()
        if self.log.due:
            with self._writing:
                self._sync()
        if time.monotonic() - self._swept > _SWEEP_SECONDS:
            self.sweep()

    def has_number(self, topic: int) -> bool:
        """Whether the log may have records of a topic with this number, of one that is gone too: it is not to be given again."""
        return topic in self.topics or topic in self.retired

    def _state(self, save: ChannelSave) -> ChannelState | None:
        """The channel that the save is of; None when it was dropped meanwhile."""
        topic = self.topics.get(save.topic)
        state = topic.channels.get(save.name) if topic else None
        return state if state is not None and state.id == save.id else None

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
            if found := reading.read(self, topic, seq, max_bytes):
                return found
            raise
        return reading.read(self, topic, seq, max_bytes)

    def checked(self, row: Row) -> Batch | None:
        """The record that the row names; None when it is damaged, or the row is wrong: then that is dealt with."""
        return reading.checked(self, row)

    def bodies(self, topic: int, seqs: Iterable[int], max_bytes: int) -> dict[int, tuple[int, bytes] | None]:
        """(time of publishing in ns, body) of each of these messages, in this order; None for one that the log does not have.

        The one that makes it ``max_bytes`` is the last: those behind are not in the answer."""
        return reading.bodies(self, topic, seqs, max_bytes)

    # --- retention -----------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Unlink the segments of which no channel needs a message any more, and rewrite one that is kept for a few."""
        self._swept = time.monotonic()
        self._keep_reserve()
        self._roll_if_finished()
        for segment in list(self.log.numbers[:-1]):
            if not self._needed(segment):
                self._remove(segment)
        self._compact()
        self.index.shrink()

    def _compact(self) -> None:
        try:
            segment = self._compactor.turn(self.log.numbers[:-1])
        except OSError:
            return  # no room for what is to be moved: a later sweep tries again
        if segment is not None:
            self.flush()
            if self._compactor.plan(segment) == []:
                self._remove(segment)

    def _roll_if_finished(self) -> None:
        """Begin a new segment when the active one is of no use, or nearly so and nobody publishes."""
        before, self._seen = self._seen, self._position
        if self.log.written <= _ROLL_BYTES:  # of thousands of topics the head alone is more: the next would be no smaller
            return
        spare = before == self._seen and self._compactor.look(self.log.active) is not None
        if self._writing.acquire(blocking=False):
            try:
                with self._sharing:
                    settled, idle = not self._rows, self._position == self._seen
                if settled and ((spare and idle) or not self._needed(self.log.active)):
                    self._roll()
            except OSError:
                pass  # no room for a new one now: a later sweep tries again
            finally:
                self._writing.release()

    def held(self, segment: int) -> dict[int, tuple[int, int]]:
        """Topic -> [lowest sequence number, end) of what the segment has."""
        with self._sharing:
            return dict(self.ranges.get(segment, {}))

    def _needed(self, segment: int) -> bool:
        return any(self._wanted(topic, low, high) for topic, (low, high) in self.held(segment).items())

    def _wanted(self, number: int, low: int, high: int) -> bool:
        topic = self.topics.get(number)
        if topic is None:
            return False
        if topic.pumped < high:
            return True
        return any(
            one.cursor < high or any(low <= seq < high for seq in one.inflight) or self.index.has_later(one.id, low, high)
            for one in list(topic.channels.values())
        )

    def _remove(self, segment: int) -> None:
        # Synced before the unlink: an index that came back older would name a file that is gone.
        with self.index.transaction(synced=True):
            for topic, (low, high) in self.held(segment).items():
                self.index.remove_batches(topic, segment, low, high)
            self.index.forget_retired(next((one for one in self.log.numbers if one != segment), segment))
        self.log.remove(segment)
        with self._sharing:
            self.ranges.pop(segment, None)
            self.retired = {*self.index.retired(), *(self.retired & self._declared)}


def widen(held: dict[int, tuple[int, int]], topic: int, low: int, high: int) -> None:
    """Let the topic's range in ``held`` cover [low, high) too."""
    old = held.get(topic)
    held[topic] = (min(old[0], low), max(old[1], high)) if old else (low, high)
