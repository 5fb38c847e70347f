"""The rows of a save, within the index's transaction: no state in memory moves here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from framework.nsqd.store.index import ChannelRow, Index, RetryRow, TopicRow, pack
from framework.nsqd.store.state import ChannelSave, ChannelState, TopicSave, TopicState


def put_declared(index: Index, topics: Mapping[int, TopicState], numbers: Iterable[int], segment: int) -> None:
    """What declarations up to ``segment`` say: names, channels, pauses; of a new channel also where it begins."""
    for number in numbers:
        topic = topics.get(number)
        if topic is None:
            index.remove_topic(number)
            index.retire(number, segment)
            continue
        wanted = {one.id: one for one in topic.channels.values()}
        found = index.pauses(number)
        for gone in found.keys() - wanted.keys():
            index.remove_channel(gone)
        new = [one for one in wanted.values() if one.id not in found]
        index.put_channels(ChannelRow(one.id, number, one.name, one.cursor, one.paused, b"") for one in new)
        for one in wanted.values():
            if found.get(one.id, one.paused) != one.paused:
                index.pause_channel(one.id, one.paused)
        index.put_topics([_row(topic)])


def put_grown(index: Index, topics: Mapping[int, TopicState], numbers: Iterable[int]) -> None:
    """How far the numbers of these topics have come."""
    index.put_topics([_row(topic) for number in numbers if (topic := topics.get(number))])


def put_topic(index: Index, topic: TopicState, save: TopicSave) -> None:
    """A topic's position."""
    for low, high in save.emptied:
        index.mark_emptied(save.id, low, high)
    index.put_topics([_row(topic)._replace(pumped=save.pumped)])


def put_channel(index: Index, channel: ChannelState, save: ChannelSave, inflight: list[int]) -> None:
    """A channel's state."""
    index.put_channels([ChannelRow(save.id, save.topic, save.name, save.cursor, channel.paused, pack(inflight))])
    if save.clear:
        index.clear_retries(save.id)
    index.remove_retries(save.id, save.drop)
    index.put_retries(RetryRow(save.id, seq, one.due, one.attempts) for seq, one in save.put.items())


def _row(topic: TopicState) -> TopicRow:
    return TopicRow(topic.id, topic.name, topic.next, topic.pumped, topic.paused)
