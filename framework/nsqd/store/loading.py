"""States of topics and channels as the index has them. It changes nothing on the disk."""

from __future__ import annotations

from framework.nsqd.store.catalog import Catalog
from framework.nsqd.store.index import FINISHED, Index, unpack
from framework.nsqd.store.state import ChannelState, Retry, TopicState


def load(index: Index, catalog: Catalog) -> None:
    """Have the catalog know what the index knows."""
    topics = catalog.topics
    for topic in index.topics():
        topics[topic.id] = TopicState(topic.id, topic.name, topic.next, topic.pumped, bool(topic.paused))
    for row in index.channels():
        if row.topic in topics:
            state = ChannelState(row.id, row.name, row.cursor, bool(row.paused), list(unpack(row.inflight)))
            topics[row.topic].channels[row.name] = state
    catalog.retired.update(index.retired())
    for segment, number, low, high in index.ranges():
        catalog.ranges.setdefault(segment, {})[number] = (low, high)


def load_backlog(index: Index, topic: TopicState) -> None:
    """Count what waits in the topic and in its channels, and list what is to be tried again."""
    if topic.channels and not topic.paused:
        topic.pumped = topic.next
    topic.depth = index.count(topic.id, topic.pumped, topic.next)
    damaged = index.damaged(topic.id)
    for channel in topic.channels.values():
        _load_retries(index, channel, damaged)
        channel.waiting = index.count(topic.id, channel.cursor, topic.pumped) - len(channel.beyond_cursor)


def _load_retries(index: Index, channel: ChannelState, damaged: list[tuple[int, int]]) -> None:
    """What was in flight when the process ended is to be tried again, and counts as one attempt more."""
    rows = {row.seq: Retry(row.due, row.attempts) for row in index.retries(channel.id)}
    for low, high in damaged:  # it may have been in flight when that was found: nobody can give it again
        channel.inflight = [seq for seq in channel.inflight if not low <= seq < high]
        rows = {seq: row for seq, row in rows.items() if not low <= seq < high}
    finished = {seq for seq, row in rows.items() if row.due == FINISHED}
    for seq in channel.inflight:
        rows[seq] = Retry(0, (rows[seq].attempts if seq in rows else 0) + 1)
    channel.beyond_cursor = {seq for seq in rows if seq >= channel.cursor}
    channel.finished_early = sorted(finished.difference(channel.inflight))
    channel.retries = {seq: row for seq, row in rows.items() if seq not in finished or seq in channel.inflight}
