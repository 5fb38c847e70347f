"""Lists the messages of a data folder that are not finished, by topic and channel, and how far each topic has been moved away.
No network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from framework.nsqd.store import Batch, ChannelSave, ChannelState, Store, TopicSave, TopicState
from framework.nsqd.store.record import bodies

_READ_BYTES = 1 << 20


class UnfinishedMessage(NamedTuple):
    """A message that some channel, or the topic itself, has not finished."""

    seq: int
    due: int
    """When the first of its channels wants it, in ms since 1970 by the wall clock; 0 is at once."""
    body: bytes
    channels: frozenset[str]
    """Those that have not finished it."""
    in_topic: bool
    """It waits in the topic: for an unpause, or for a first channel."""


class TopicContents:
    """What is left of one topic. The folder must not be served meanwhile: the Store that holds its lock sees to that."""

    def __init__(self, store: Store, state: TopicState) -> None:
        self.name = state.name
        self.paused = state.paused
        self.unreadable = 0
        """Messages that ``messages`` should have met and did not, since it was last begun: damaged on the disk."""
        self._store = store
        self._state = state
        self._channels = list(state.channels.values())
        self._all = frozenset(state.channels)
        self._rows = {one.name: sorted({*one.retries, *one.beyond_cursor}, reverse=True) for one in self._channels}
        """What the index has rows for, oldest last."""

    @property
    def channels(self) -> list[str]:
        return [one.name for one in self._channels]

    @property
    def paused_channels(self) -> list[str]:
        return [one.name for one in self._channels if one.paused]

    def messages(self) -> Iterator[UnfinishedMessage]:
        """Oldest first, from where ``moved`` has come to."""
        met: dict[str, int] = dict.fromkeys(self._all, 0)
        expected = {one.name: len(one.retries) for one in self._channels}
        for batch in self._batches():
            for seq, body in enumerate(bodies(batch.payload, batch.count), batch.first):
                waiting = [one for one in self._channels if _unfinished(one, seq)]
                in_topic = seq >= self._state.pumped
                if not (waiting or in_topic):
                    continue
                for one in waiting:
                    met[one.name] += seq in one.retries
                due = min([_due(one, seq, batch) for one in waiting], default=batch.due)
                names = self._all if len(waiting) == len(self._all) else frozenset(one.name for one in waiting)
                due = due and int(self._store.clock.wall(due))
                yield UnfinishedMessage(seq, due, body, names, in_topic)
        self.unreadable = sum(expected[name] - met[name] for name in met)

    def _batches(self) -> Iterator[Batch]:
        seq = min([self._state.pumped, *(min([one.cursor, *one.retries]) for one in self._channels)])
        while seq < self._state.next:
            found = self._store.read(self._state.id, seq, _READ_BYTES)
            if not found:
                return
            for batch in found:
                yield _from(batch, seq)
            seq = found[-1].end

    def moved(self, seq: int) -> None:
        """Everything up to and with ``seq`` is elsewhere now: finished here, for the topic and each channel."""
        state = self._state
        saves = [self._finish(channel, seq) for channel in self._channels]
        self._store.save([TopicSave(state.id, max(state.pumped, seq + 1))], saves)
        self._store.tidy()

    def _finish(self, channel: ChannelState, seq: int) -> ChannelSave:
        rows, drop = self._rows[channel.name], []
        while rows and rows[-1] <= seq:
            drop.append(rows.pop())
            channel.retries.pop(drop[-1], None)
        kept = [one for one in channel.inflight if one > seq]
        cursor = max(channel.cursor, seq + 1)
        return ChannelSave(channel.id, self._state.id, channel.name, cursor, kept, {}, drop)


def _unfinished(channel: ChannelState, seq: int) -> bool:
    return seq in channel.retries or (seq >= channel.cursor and seq not in channel.beyond_cursor)


def _due(channel: ChannelState, seq: int, batch: Batch) -> int:
    retry = channel.retries.get(seq)
    return batch.due if retry is None else retry.due


def _from(batch: Batch, seq: int) -> Batch:
    """The batch without what is before ``seq``, which is read with it when it is in one record."""
    if batch.first >= seq:
        return batch
    offset = sum(4 + len(body) for body in bodies(batch.payload, seq - batch.first))
    return Batch(batch.topic, seq, batch.end - seq, batch.ts, batch.due, batch.payload[offset:])


def contents(store: Store) -> list[TopicContents]:
    """Every topic of the folder, by name."""
    return [TopicContents(store, state) for state in sorted(store.topics.values(), key=lambda one: one.name)]
