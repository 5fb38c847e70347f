"""How the store reads: every row of the index is held against the record that it names, and what is damaged is accounted for.

A row that does not fit is looked into by one scan of its segment, which sets all of that segment's rows right; a gap in the
numbers of a topic likewise by one scan of each. Neither is done twice while the process lives.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING

from framework.nsqd.store.compaction import dense
from framework.nsqd.store.index import EMPTIED, FINISHED, Row
from framework.nsqd.store.log import Broken
from framework.nsqd.store.record import Batch, decode
from framework.nsqd.store.record import bodies as each_body
from framework.nsqd.store.state import ChannelState, Correction, TopicState

if TYPE_CHECKING:
    from framework.nsqd.store.store import Store

_READ_ROWS = 64
"""Index rows looked up at once."""


def read(store: Store, topic: int, seq: int, max_bytes: int) -> list[Batch]:
    """The store's ``read``."""
    batches: list[Batch] = []
    held, expected = 0, seq
    while not batches and (rows := store.index.batches(topic, expected, _READ_ROWS)):
        for row in rows:
            if row.first > expected:
                expected = _look_into_gap(store, topic, expected, row.first)
                break
            if not row.dead:
                batch = checked(store, row)
                if batch is None:
                    break
                batches += [run for run in dense(batch) if run.end > seq]
                held += len(batch.payload)
            expected = max(expected, row.first + row.n)
            if batches and held >= max_bytes:
                break
    return batches


def bodies(store: Store, topic: int, seqs: Iterable[int], max_bytes: int) -> dict[int, tuple[int, bytes] | None]:
    """The store's ``bodies``."""
    found: dict[int, tuple[int, bytes] | None] = {}
    held = 0
    asked = dict.fromkeys(seqs)
    for seq in asked:
        if held >= max_bytes:
            break
        if seq in found:
            continue
        for batch in store.read(topic, seq, 1):
            each = each_body(batch.payload, batch.count)
            for at, body in enumerate(each, batch.first):
                if at in asked and at not in found:
                    found[at] = batch.ts, body
                    held += len(body)
        found.setdefault(seq, None)
    return found


def checked(store: Store, row: Row) -> Batch | None:
    """The record that ``row`` names; None when the row was wrong or the record is damaged, which was dealt with."""
    batch = _record(store, row)
    if batch is not None:
        return batch
    if row.seg not in store.examined:
        _examine(store, row.seg)
        if store.index.row(row.topic, row.first) != row:
            return None
    data = store.log.read(row.seg, row.off, row.len)
    if not _is_broken(store, row):
        with store.index.transaction():
            store.index.remove_batch(row.topic, row.first)
        _examine_all(store)
    if _is_broken(store, row) or not store.index.count(row.topic, row.first, row.first + row.n):
        _lose(store, row, data)
    else:
        store.reports.append(f"the index named a wrong place for messages of topic {row.topic}: corrected from the log")
    store.corrections.append(Correction(row.topic, row.first, row.first + row.n))
    return None


def _is_broken(store: Store, row: Row) -> bool:
    """Whether the log is damaged where the row says; else it is the row that is."""
    return any(one.offset < row.off + row.len and one.offset + one.length > row.off for one in store.examined.get(row.seg, ()))


def _record(store: Store, row: Row) -> Batch | None:
    batch = decode(store.log.read(row.seg, row.off, row.len), 0, store.log.salt)
    if batch is None or (batch.topic, batch.first, batch.count) != (row.topic, row.first, row.n):
        return None
    return batch


def _lose(store: Store, row: Row, data: bytes) -> None:
    count = wanted(store, row.topic, row.first, row.first + row.n)
    name = f"{row.seg:010}-{row.off}"
    known = store.folder.has_set_aside(name, data)
    kept = store.folder.set_aside(name, data)
    with store.index.transaction():
        store.index.bury_damaged(row.topic, row.first, row.first + row.n)
    if not known:
        words, after = say_damaged(count)
        store.reports.append(f"{row.len} bytes at {row.off} of segment {row.seg} {words}, kept in {kept}{after}")


def say_damaged(count: int) -> tuple[str, str]:
    """What is said of damaged bytes before and behind the place where they are kept."""
    return f"are damaged: {count} messages lost", "; all others are served"


def wanted(store: Store, number: int, low: int, high: int) -> int:
    """How many messages of [low, high) the topic or a channel has not finished, as far as was saved."""
    topic = store.topics.get(number)
    if topic is None:
        return high - low
    return sum(1 for seq in _wanted(store, topic, low, high))


def _wanted(store: Store, topic: TopicState, low: int, high: int) -> set[int]:
    found = set(range(max(low, topic.pumped), high))
    for channel in list(topic.channels.values()):
        found |= _unfinished(store, channel, low, high)
    return found


def _unfinished(store: Store, channel: ChannelState, low: int, high: int) -> set[int]:
    found = set(range(max(low, channel.cursor), high))
    for row in store.index.later(channel.id, low, high):
        (found.discard if row.due == FINISHED else found.add)(row.seq)
    found.update(seq for seq in list(channel.inflight) if low <= seq < high)
    return found


# --- what the index lacks ----------------------------------------------------------------------------------------


def _look_into_gap(store: Store, topic: int, low: int, high: int) -> int:
    """Numbers [low, high) without a row: have them indexed if the log has them. Returns where to read on."""
    if not store.rebuilt:
        _examine_all(store)
    rows = store.index.batches(topic, low, 1)
    if not rows or rows[0].first <= low:
        return low
    try:
        with store.index.transaction():
            store.index.add_batches([Row(topic, low, rows[0].first - low, EMPTIED, 0, 0, 0)])
    except sqlite3.Error:
        pass  # no room: the next process looks into it once more
    return rows[0].first


def _examine_all(store: Store) -> None:
    for segment in list(store.log.numbers):
        if segment not in store.examined:
            _examine(store, segment)


def _examine(store: Store, segment: int) -> None:
    """Have the index name the right place of every record of the segment."""
    broken = store.examined[segment] = []
    end = store.index.position()
    if end is None or segment > end[0] or segment not in store.log.numbers:
        return
    for item in store.log.scan(segment, 0, end[1] if segment == end[0] else None):
        if isinstance(item, Broken):
            broken.append(item)
        elif item.batch.count and item.batch.topic in store.topics:
            batch = item.batch
            row = store.index.row(batch.topic, batch.first)
            right = Row(batch.topic, batch.first, batch.count, 0, segment, item.offset, item.length)
            if row is None or (row != right and not row.dead and _record(store, row) is None):
                _correct(store, row, right)


def _correct(store: Store, wrong: Row | None, right: Row) -> None:
    with store.index.transaction():
        store.index.add_batches([right])
    if wrong is not None:
        store.corrections.append(Correction(wrong.topic, wrong.first, wrong.first + wrong.n))
    store.corrections.append(Correction(right.topic, right.first, right.first + right.n, there=True))
    store.reports.append(f"the index named a wrong place for messages of topic {right.topic}: corrected from the log")
