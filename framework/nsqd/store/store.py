"""The storage of the embedded nsqd: the log is the truth, the index says where and how far.

Five verbs: ``Store(folder)`` opens and recovers, ``append`` is durable on return, ``read``, ``save`` (lazy), and a
Declaration with ``dropped`` drops. ``append`` may run in one thread while ``read`` and ``save`` run in another.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from framework.nsqd.store import record, recovery
from framework.nsqd.store.compaction import Compactor
from framework.nsqd.store.folder import Folder
from framework.nsqd.store.index import ChannelRow, Index, LaterRow, Row, TopicRow, pack
from framework.nsqd.store.log import SEGMENT_BYTES, Log, Syncing
from framework.nsqd.store.record import HEADER_BYTES, Batch, Declaration, Declared
from framework.nsqd.store.state import ChannelSave, ChannelState, Declare, Entry, TopicSave, TopicState

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
        self.log = Log(path / "log", self.folder.salt, syncing)
        self.index: Index = self.folder.open_index()
        self.ranges: dict[int, dict[int, tuple[int, int]]] = {}
        """Segment -> topic -> [lowest sequence number, end) of what it holds."""
        self.gaps: set[tuple[int, int, int]] = set()
        """Gaps in the numbers of a topic that were looked into: (topic, low, high)."""
        self.rebuilt = False
        """The index was made anew from the whole log: what it does not have is not there."""
        self._writing = threading.Lock()
        self._sharing = threading.Lock()
        self._rows: list[Row] = []
        self._declared: set[int] = set()
        self._swept = 0.0
        self._seen = (0, 0)
        self._compactor = Compactor(self)
        self._position = (self.log.active, 0)
        self._position = recovery.recover(self)

    def close(self) -> None:
        """Save what is known and let the folder go."""
        self.flush()
        with self._writing:
            self.log.sync()
        self.index.close()
        self.log.close()
        self.folder.close()

    # --- append ----------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry | Declare]) -> list[Batch]:
        """Write the group with one sync; returns its records, messages merged and numbered.

        Durable on return, unless ``syncing`` loosens it. Raises OSError (a full disk, a failed sync): then nothing of
        the group is kept.
        """
        with self._writing:
            self._require_room()
            if self.log.suspect or self.log.size >= SEGMENT_BYTES:
                self._roll()
            batches = self._number(_merge(entries))
            offset = self.log.write(batches)
            with self._sharing:
                self._accept(batches, offset)
            return batches

    def move(self, batches: Sequence[Batch]) -> None:
        """Write these records once more, at the end of the log: a segment that has them can go afterwards. Raises OSError."""
        if not batches:
            return
        with self._writing:
            if self.log.suspect or self.log.size >= SEGMENT_BYTES:
                self._roll()
            offset = self.log.write(batches)
            self.log.sync()  # whatever publishers are content with: the old place will go
            with self._sharing:
                self._accept(batches, offset)

    def _require_room(self) -> None:
        disk = os.statvfs(self.folder.path)
        if disk.f_bavail * disk.f_frsize < min(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // 16):
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
                batches.append(record.declare(topic, nexts[topic], now, entry.what))
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
            return
        topic = self.topics.setdefault(batch.topic, TopicState(batch.topic, said.name, batch.first, said.pumped or batch.first))
        topic.next = max(topic.next, batch.first)  # what had the numbers below may be gone, and they are not used again
        topic.paused = said.paused
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
        heads = [record.declare(topic.id, topic.next, now, _declaration(topic)) for topic in list(self.topics.values())]
        self.log.roll(heads)
        with self._sharing:
            self._position = (self.log.active, self.log.size)

    # --- save --------------------------------------------------------------------------------------------------

    def save(self, topics: Sequence[TopicSave] = (), channels: Sequence[ChannelSave] = ()) -> None:
        """Keep these states, in one transaction with the places of what was appended before.

        Raises sqlite3.Error; then nothing was kept, and the caller saves again later.
        """
        self.flush(topics, channels)
        if self.log.due:
            with self._writing:
                self.log.sync()
        if time.monotonic() - self._swept > _SWEEP_SECONDS:
            self.sweep()

    def flush(self, topics: Sequence[TopicSave] = (), channels: Sequence[ChannelSave] = ()) -> None:
        """The transaction of ``save``."""
        with self._sharing:
            rows, self._rows = self._rows, []
            declared, self._declared = self._declared, set()
            position = self._position
        if not (rows or declared or topics or channels):
            return
        try:
            with self.index.transaction():
                self.index.put_batches(rows, position)
                self._put_declared(declared)
                self._put_topics(topics, {row.topic for row in rows})
                for channel in channels:
                    self._put_channel(channel)
        except BaseException:
            with self._sharing:
                self._rows = rows + self._rows
                self._declared |= declared
            raise

    def _put_declared(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            topic = self.topics.get(number)
            if topic is None:
                self.index.remove_topic(number)
                continue
            wanted = {one.id: one for one in topic.channels.values()}
            found = {row.id for row in self.index.channels() if row.topic == number}
            for gone in found - wanted.keys():
                self.index.remove_channel(gone)
            new = [one for one in wanted.values() if one.id not in found]
            self.index.put_channels(ChannelRow(one.id, number, one.name, one.cursor, one.paused, b"") for one in new)
            self.index.put_topics([_row(topic)])

    def _put_topics(self, saves: Iterable[TopicSave], grown: set[int]) -> None:
        for save in saves:
            topic = self.topics.get(save.id)
            if topic is not None:
                topic.pumped, topic.paused = save.pumped, save.paused
                grown.add(save.id)
                for low, high in save.emptied:
                    self.index.bury(save.id, low, high)
        self.index.put_topics([_row(topic) for number in grown if (topic := self.topics.get(number))])

    def _put_channel(self, save: ChannelSave) -> None:
        topic = self.topics.get(save.topic)
        state = topic.channels.get(save.name) if topic else None
        if state is None or state.id != save.id:
            return  # dropped meanwhile
        state.cursor, state.paused, state.inflight = save.cursor, save.paused, list(save.inflight)
        row = ChannelRow(save.id, save.topic, save.name, save.cursor, save.paused, pack(state.inflight))
        self.index.put_channels([row])
        if save.clear:
            self.index.clear_later(save.id)
        self.index.remove_later(save.id, save.drop)
        self.index.put_later(LaterRow(save.id, seq, one.due, one.attempts) for seq, one in save.put.items())

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
            if found := recovery.read(self, topic, seq, max_bytes):
                return found
            raise
        return recovery.read(self, topic, seq, max_bytes)

    def bodies(self, topic: int, seqs: Iterable[int], max_bytes: int) -> dict[int, tuple[int, bytes] | None]:
        """(time of publishing in ns, body) of each of these messages, in this order; None for one that the log does not have.

        The one that makes it ``max_bytes`` is the last: those behind are not in the answer."""
        found: dict[int, tuple[int, bytes] | None] = {}
        held = 0
        wanted = dict.fromkeys(seqs)
        for seq in wanted:
            if held >= max_bytes:
                break
            if seq in found:
                continue
            for batch in self.read(topic, seq, 1):
                each = record.bodies(batch.payload, batch.count)
                for at, body in enumerate(each, batch.first):
                    if at in wanted and at not in found:
                        found[at] = batch.ts, body
                        held += len(body)
            found.setdefault(seq, None)
        return found

    # --- retention -----------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Unlink the segments of which no channel needs a message any more, and rewrite one that is kept for a few."""
        self._swept = time.monotonic()
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
        if self.log.size <= _ROLL_BYTES:
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
        with self._sharing:
            held = self.ranges.pop(segment, {})
        # Synced before the unlink: an index that came back older would name a file that is gone.
        with self.index.transaction(synced=True):
            for topic, (low, high) in held.items():
                self.index.remove_batches(topic, segment, low, high)
        self.log.remove(segment)


def widen(held: dict[int, tuple[int, int]], topic: int, low: int, high: int) -> None:
    """Let the topic's range in ``held`` cover [low, high) too."""
    old = held.get(topic)
    held[topic] = (min(old[0], low), max(old[1], high)) if old else (low, high)


def _row(topic: TopicState) -> TopicRow:
    return TopicRow(topic.id, topic.name, topic.next, topic.pumped, topic.paused)


def _declaration(topic: TopicState) -> Declaration:
    channels = {one.name: Declared(one.id, one.cursor, one.paused) for one in list(topic.channels.values())}
    return Declaration(topic.name, topic.pumped, topic.paused, channels)


class _Growing(msgspec.Struct):
    """Publishes of one topic that become one record."""

    topic: int
    due: int
    parts: list[bytes] = []
    count: int = 0
    size: int = 0

    def takes(self, payload: bytes, count: int) -> bool:
        return self.count + count <= record.MAX_RECORD_MESSAGES and self.size + len(payload) <= record.MAX_RECORD_BYTES

    def add(self, payload: bytes, count: int) -> None:
        self.parts.append(payload)
        self.count += count
        self.size += len(payload)

    def entry(self) -> Entry:
        return Entry(self.topic, self.parts[0] if len(self.parts) == 1 else b"".join(self.parts), self.count, self.due)


def _merge(entries: Iterable[Entry | Declare]) -> list[Entry | Declare]:
    """Single publishes of one topic become one record, oversized ones several; the order in a topic stays."""
    merged: list[Declare | _Growing] = []
    growing: dict[int, _Growing] = {}
    for entry in entries:
        if isinstance(entry, Declare):
            merged.append(entry)
            continue
        for payload, count in record.split(entry.payload, entry.count):
            grows = growing.get(entry.topic)
            if grows is None or grows.due or entry.due or not grows.takes(payload, count):
                grows = growing[entry.topic] = _Growing(entry.topic, entry.due)
                merged.append(grows)
            grows.add(payload, count)
    return [one if isinstance(one, Declare) else one.entry() for one in merged]
