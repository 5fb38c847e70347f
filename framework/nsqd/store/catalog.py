"""What the log has, held in memory: its topics, which of their numbers each segment has, and the rows that the index lacks.

It does no I/O. The recovery fills it, ``append`` and ``save`` keep it, and the sweep and the compaction go by it.
One thread may append while another saves: what both use is behind one lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from framework.nsqd.store import record
from framework.nsqd.store.damage import LEAP
from framework.nsqd.store.index import Row
from framework.nsqd.store.record import HEADER_BYTES, Batch, Declaration
from framework.nsqd.store.state import ChannelSave, ChannelState, Declare, Entry, TopicSave, TopicState


class Unindexed(NamedTuple):
    """What the index shall learn with the next transaction."""

    rows: list[Row]
    declared: set[int]
    """Topics that were declared."""
    position: tuple[int, int]
    """The (segment, offset) behind the last of the rows."""


class Catalog:
    """The topics, the ranges, and the rows without an index. ``position``: the (segment, offset) that it begins at."""

    rebuilt: bool
    """The index was made anew from the whole log: what it does not have is not there. The recovery says so."""

    def __init__(self, position: tuple[int, int]) -> None:
        self.topics: dict[int, TopicState] = {}
        """By topic number."""
        self.ranges: dict[int, dict[int, tuple[int, int]]] = {}
        """Segment -> topic -> [lowest sequence number, end) of what it holds."""
        self.retired: set[int] = set()
        """Numbers of topics that are gone, while records of the log may have them."""
        self.position = position
        """Behind the last record that is known here."""
        self._rows: list[Row] = []
        self._declared: set[int] = set()
        self._sharing = threading.Lock()

    # --- numbers -------------------------------------------------------------------------------------------------

    def has_number(self, topic: int) -> bool:
        """Whether the log may have records of a topic with this number, of one that is gone too: it is not to be given again."""
        return topic in self.topics or topic in self.retired

    def number(self, entries: Iterable[Entry | Declare]) -> list[Batch]:
        """The entries as records, each message with the next number of its topic. ``accept`` takes the numbers."""
        now, nexts, batches = time.time_ns(), dict[int, int](), list[Batch]()
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

    def use_up(self, batches: Iterable[Batch]) -> None:
        """Give these numbers to nobody else: a power cut may bring back what could not be written for certain, nor removed."""
        with self._sharing:
            for batch in batches:
                if topic := self.topics.get(batch.topic):
                    # By a jump, else the numbers that are missing would be taken for messages that were lost.
                    topic.next = max(topic.next, batch.end + LEAP)
                    self._declared.add(topic.id)  # so that the index knows it, whatever else is written of the topic

    def heads(self) -> list[Batch]:
        """What the head of a new segment says, so that the log alone suffices when older segments are gone."""
        now = time.time_ns()
        heads = [record.declare(topic.id, topic.next, now, topic.declaration()) for topic in list(self.topics.values())]
        # The segment that says so may go before an older one that still names them.
        heads += [record.declare(number, now, now, Declaration("", dropped=True)) for number in list(self.retired)]
        return heads * 2

    # --- records -------------------------------------------------------------------------------------------------

    def accept(self, batches: Iterable[Batch], segment: int, offset: int) -> None:
        """Note these records, which were just written one behind the other."""
        with self._sharing:
            for batch in batches:
                length = HEADER_BYTES + len(batch.payload)
                self._take(batch, segment, offset, length)
                offset += length
            self.position = (segment, offset)

    def _take(self, batch: Batch, segment: int, offset: int, length: int) -> None:
        if batch.count == 0:
            self.apply(batch)
        elif (topic := self.topics.get(batch.topic)) is not None:
            topic.next = max(topic.next, batch.end)
            self._rows.append(Row(batch.topic, batch.first, batch.count, 0, segment, offset, length))
            self._widen(segment, batch.topic, batch.first, batch.end)

    def _widen(self, segment: int, topic: int, low: int, high: int) -> None:
        held = self.ranges.setdefault(segment, {})
        old = held.get(topic)
        held[topic] = (min(old[0], low), max(old[1], high)) if old else (low, high)

    def apply(self, batch: Batch) -> None:
        """Have the topic as its declaration says."""
        said = record.declaration(batch)
        self._declared.add(batch.topic)
        if said.dropped:
            self.topics.pop(batch.topic, None)
            self.retired.add(batch.topic)
            return
        topic = self.topics.setdefault(batch.topic, TopicState(batch.topic, said.name, batch.first, said.pumped or batch.first))
        topic.next = max(topic.next, batch.first)  # what had the numbers below may be gone, and they are not used again
        topic.name, topic.paused = said.name, said.paused
        if said.changes:
            _change(topic, said)
            return
        known = {one.id: one for one in topic.channels.values()}
        topic.channels = {
            # A channel that is known keeps its own cursor: what a later segment's head says may be further
            # than messages of older segments that are still in flight.
            name: known.get(one.id) or ChannelState(one.id, name, one.cursor, one.paused)
            for name, one in said.channels.items()
        }
        for name, one in said.channels.items():
            topic.channels[name].paused = one.paused

    # --- what the index lacks ------------------------------------------------------------------------------------

    def take_unindexed(self) -> Unindexed:
        """For a transaction. Where that fails, ``give_back``."""
        with self._sharing:
            rows, self._rows = self._rows, []
            declared, self._declared = self._declared, set()
            return Unindexed(rows, declared, self.position)

    def give_back(self, unindexed: Unindexed) -> None:
        with self._sharing:
            self._rows = unindexed.rows + self._rows
            self._declared |= unindexed.declared

    def is_indexed_at(self, position: tuple[int, int]) -> tuple[bool, bool]:
        """Whether no row waits for the index, and whether nothing was written behind ``position``."""
        with self._sharing:
            return not self._rows, self.position == position

    # --- positions -----------------------------------------------------------------------------------------------

    def channel(self, save: ChannelSave) -> ChannelState | None:
        """The channel that the save is of; None when it was dropped meanwhile."""
        topic = self.topics.get(save.topic)
        state = topic.channels.get(save.name) if topic else None
        return state if state is not None and state.id == save.id else None

    def keep(
        self, topics: Sequence[tuple[TopicState, TopicSave]], channels: Sequence[tuple[ChannelState, ChannelSave, list[int]]]
    ) -> None:
        """Move the positions that the sweep goes by. After the transaction that has them, and not at all when that failed."""
        for topic, topic_save in topics:
            topic.pumped = topic_save.pumped
        for channel, channel_save, inflight in channels:
            channel.cursor, channel.inflight = channel_save.cursor, inflight

    # --- segments ------------------------------------------------------------------------------------------------

    def ranges_in(self, segment: int) -> dict[int, tuple[int, int]]:
        """Topic -> [lowest sequence number, end) of what the segment has."""
        with self._sharing:
            return dict(self.ranges.get(segment, {}))

    def found(self, segment: int, topic: int, low: int, high: int) -> None:
        """The segment has messages [low, high) of the topic, which the index had at another place."""
        with self._sharing:
            self._widen(segment, topic, low, high)

    def removed(self, segment: int, retired: Iterable[int]) -> None:
        """The segment is gone. ``retired``: the numbers that the index still keeps from being given again."""
        with self._sharing:
            self.ranges.pop(segment, None)
            self.retired = {*retired, *(self.retired & self._declared)}


def _change(topic: TopicState, said: Declaration) -> None:
    """Have its channels as a declaration says that names only what changed."""
    channels = dict(topic.channels)  # the thread that saves may be going through those that there were
    for name in said.gone:
        channels.pop(name, None)
    for name, one in said.channels.items():
        known = channels.get(name)
        if known is not None and known.id == one.id:
            known.paused = one.paused
        else:
            channels[name] = ChannelState(one.id, name, one.cursor, one.paused)
    topic.channels = channels
