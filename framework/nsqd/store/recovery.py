"""What the store does when it opens a folder, and when it meets damage later: nothing good is ever given up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from framework.nsqd.store.compaction import dense
from framework.nsqd.store.index import FINISHED, LaterRow, Row, unpack
from framework.nsqd.store.log import Broken
from framework.nsqd.store.record import Batch, decode
from framework.nsqd.store.state import ChannelState, Pending, TopicState

if TYPE_CHECKING:
    from framework.nsqd.store.store import Store

_READ_ROWS = 64
"""Index rows looked up at once."""


def recover(store: Store) -> tuple[int, int]:
    """Load the index, scan the log from where it ends, cut a torn tail; returns the indexed position."""
    position = store.index.position()
    if position is not None and not _exists(store, position):
        store.reports.append("the index is ahead of the log: it is rebuilt")
        _start_index_anew(store)
        position = None
    _load(store)
    store.rebuilt = position is None
    moved: dict[int, set[int]] = {}
    damaged = _scan_from(store, position or (store.log.numbers[0], 0), moved)
    if damaged:
        for topic in store.topics.values():
            # What was cut may have been delivered under these numbers: never use them for another message.
            topic.next = max(topic.next, time.time_ns())
    end = (store.log.active, store.log.size)
    store._position = end
    store.flush()
    if store.rebuilt:
        _await_moved(store, moved)
    for topic in store.topics.values():
        _load_backlog(store, topic)
    return end


def _exists(store: Store, position: tuple[int, int]) -> bool:
    segment, offset = position
    if segment < store.log.active:
        return True  # if it was removed, all of it was finished: the scan begins with the next that there is
    return segment == store.log.active and offset <= store.log.size


def _start_index_anew(store: Store) -> None:
    store.index.close()
    store.folder.set_index_aside()
    store.index = store.folder.open_index()


def _load(store: Store) -> None:
    for topic in store.index.topics():
        store.topics[topic.id] = TopicState(topic.id, topic.name, topic.next, topic.pumped, bool(topic.paused))
    for row in store.index.channels():
        if row.topic in store.topics:
            state = ChannelState(row.id, row.name, row.cursor, bool(row.paused), list(unpack(row.inflight)))
            store.topics[row.topic].channels[row.name] = state
    for segment, number, low, high in store.index.ranges():
        store.ranges.setdefault(segment, {})[number] = (low, high)


def _await_moved(store: Store, moved: dict[int, set[int]]) -> None:
    """With the index gone, nobody knows who had not finished what was moved: every channel that is past it gets it once more."""
    with store.index.transaction():
        for number, seqs in moved.items():
            topic = store.topics.get(number)
            for channel in topic.channels.values() if topic else ():
                store.index.put_later(LaterRow(channel.id, seq, 0, 0) for seq in seqs if seq < channel.cursor)


def _scan_from(store: Store, position: tuple[int, int], moved: dict[int, set[int]]) -> bool:
    """Take every record behind ``position``; returns whether some of it was damaged. ``moved`` gets what older segments had."""
    damaged = False
    for segment in [number for number in store.log.numbers if number >= position[0]]:
        for item in store.log.scan(segment, position[1] if segment == position[0] else 0):
            if isinstance(item, Broken):
                damaged = True
                _set_aside(store, segment, item)
            else:
                store.take(item.batch, segment, item.offset, item.length)
                if item.batch.moved:
                    seqs = moved.setdefault(item.batch.topic, set())
                    seqs.update(seq for run in dense(item.batch) for seq in range(run.first, run.end))
    return damaged


def _set_aside(store: Store, segment: int, broken: Broken) -> None:
    data = store.log.read(segment, broken.offset, broken.length)
    kept = store.folder.set_aside(f"{segment:010}-{broken.offset}", data)
    where = f"{broken.length} bytes at {broken.offset} of segment {segment}"
    if broken.torn and segment == store.log.active:
        store.log.cut(broken.offset)
        store.reports.append(f"{where} are the start of a record that was never confirmed: cut off, kept in {kept}")
    else:
        store.reports.append(f"{where} are damaged: kept in {kept}; all other messages are served")


def _load_backlog(store: Store, topic: TopicState) -> None:
    if topic.channels and not topic.paused:
        topic.pumped = topic.next
    topic.depth = store.index.count(topic.id, topic.pumped, topic.next)
    for channel in topic.channels.values():
        _load_pending(store, channel)
        channel.waiting = store.index.count(topic.id, channel.cursor, topic.pumped) - len(channel.ahead)


def _load_pending(store: Store, channel: ChannelState) -> None:
    """What was in flight when the process ended stays pending and counts as one attempt more."""
    rows = {row.seq: Pending(row.due, row.attempts) for row in store.index.later(channel.id)}
    finished = {seq for seq, row in rows.items() if row.due == FINISHED}
    for seq in channel.inflight:
        rows[seq] = Pending(0, (rows[seq].attempts if seq in rows else 0) + 1)
    channel.ahead = {seq for seq in rows if seq >= channel.cursor}
    channel.pending = {seq: row for seq, row in rows.items() if seq not in finished or seq in channel.inflight}


def read(store: Store, topic: int, seq: int, max_bytes: int) -> list[Batch]:
    """The store's ``read``, with every row held against the record that it names."""
    batches: list[Batch] = []
    held, expected = 0, seq
    rows = store.index.batches(topic, seq, _READ_ROWS)
    while rows and held < max_bytes:
        row = rows.pop(0)
        if row.first > expected and _fill_gap(store, topic, expected, row):
            rows = store.index.batches(topic, expected, _READ_ROWS)
            continue
        batch = _read_row(store, row)
        if batch is None:
            rows = store.index.batches(topic, max(expected, row.first), _READ_ROWS)
            continue
        expected = batch.end
        if not row.dead:
            batches += [run for run in dense(batch) if run.end > seq]
            held += len(batch.payload)
        if not rows and not batches:
            rows = store.index.batches(topic, expected, _READ_ROWS)
    return batches


def _read_row(store: Store, row: Row) -> Batch | None:
    """The record that ``row`` names; None when the row was wrong or the record is damaged, and was dealt with."""
    data = store.log.read(row.seg, row.off, row.len)
    batch = decode(data, 0, store.log.salt)
    if batch is not None and (batch.topic, batch.first, batch.count) == (row.topic, row.first, row.n):
        return batch
    with store.index.transaction():
        store.index.remove_batch(row.topic, row.first)
        if batch is not None and batch.count:
            store.index.add_batches([Row(batch.topic, batch.first, batch.count, 0, row.seg, row.off, row.len)])
    if batch is not None:
        _rescan(store, row.topic, row.first, row.first + max(1, row.n), {row.seg})
        store.reports.append(f"the index named a wrong place for messages of topic {row.topic}: corrected from the log")
        return None
    kept = store.folder.set_aside(f"{row.seg:010}-{row.off}", data)
    where = f"{row.len} bytes at {row.off} of segment {row.seg}"
    store.reports.append(f"{where} are damaged: {row.n} messages lost, kept in {kept}; all others are served")
    return None


def _fill_gap(store: Store, topic: int, low: int, row: Row) -> bool:
    """Batches of [low, row.first) that the log has and the index has lost (a flipped bit in a row's key)."""
    gap = (topic, low, row.first)
    if store.rebuilt or gap in store.gaps:
        return False
    store.gaps.add(gap)
    segments = {number for number in store.log.numbers if number <= row.seg}
    return _rescan(store, topic, low, row.first, segments)


def _rescan(store: Store, topic: int, low: int, high: int, segments: set[int]) -> bool:
    """Index again the topic's records that begin in [low, high); whether there were any."""
    rows = []
    for segment in sorted(segments):
        for item in store.log.scan(segment):
            if not isinstance(item, Broken) and item.batch.count and item.batch.topic == topic and low <= item.batch.first < high:
                rows.append(Row(topic, item.batch.first, item.batch.count, 0, segment, item.offset, item.length))
    if rows:
        with store.index.transaction():
            store.index.add_batches(rows)
    return bool(rows)
