"""Which messages somebody still waits for, as far as was saved: what damage costs, whether a segment may go."""

from __future__ import annotations

from framework.nsqd.store.catalog import Catalog
from framework.nsqd.store.index import FINISHED, Index
from framework.nsqd.store.state import ChannelState, TopicState


def count(catalog: Catalog, index: Index, number: int, low: int, high: int) -> int:
    """How many messages of [low, high) the topic or a channel has not finished."""
    topic = catalog.topics.get(number)
    return high - low if topic is None else len(_of_topic(index, topic, low, high))


def _of_topic(index: Index, topic: TopicState, low: int, high: int) -> set[int]:
    found = set(range(max(low, topic.pumped), high))
    for channel in list(topic.channels.values()):
        found |= _of_channel(index, channel, low, high)
    return found


def _of_channel(index: Index, channel: ChannelState, low: int, high: int) -> set[int]:
    found = set(range(max(low, channel.cursor), high))
    for row in index.retries(channel.id, low, high):
        (found.discard if row.due == FINISHED else found.add)(row.seq)
    found.update(seq for seq in list(channel.inflight) if low <= seq < high)
    return found


def any_in(catalog: Catalog, index: Index, segment: int) -> bool:
    """Whether the segment has a message that is not finished."""
    return any(any_of(catalog, index, topic, low, high) for topic, (low, high) in catalog.ranges_in(segment).items())


def any_of(catalog: Catalog, index: Index, number: int, low: int, high: int) -> bool:
    """Whether somebody waits for a message of [low, high) of the topic."""
    topic = catalog.topics.get(number)
    if topic is None:
        return False
    if topic.pumped < high:
        return True
    return any(
        one.cursor < high or any(low <= seq < high for seq in one.inflight) or index.has_retry(one.id, low, high)
        for one in list(topic.channels.values())
    )
