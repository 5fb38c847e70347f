"""What the store and its user tell each other: entries to append, states found at start, states to save.

Names, channels and pauses are appended (a Declare); positions are saved, and rest on these. So there are no pauses in a
save, and nobody saves a position before the Declare that it rests on is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from framework.nsqd.store.record import Declaration, Declared


class Entry(msgspec.Struct, frozen=True, gc=False):
    """Messages to append: a payload as a record holds it."""

    topic: int
    payload: bytes
    count: int
    due: int = 0
    """When it may be delivered, in ms of the store's clock; 0 is at once."""


class Declare(NamedTuple):
    """A topic as it is from now on: created, with its channels, paused, or dropped."""

    topic: int
    what: Declaration


class Retry(msgspec.Struct, frozen=True, gc=False):
    """A message that was in flight, requeued or deferred, and is not finished: to be delivered when it is due.

    There may be a million: the collector must not look at them.
    """

    due: int
    """In ms of the store's clock; 0 is at once."""
    attempts: int


@dataclass
class ChannelState:
    """A channel as it was found at start."""

    id: int
    name: str
    cursor: int
    paused: bool = False
    inflight: list[int] = field(default_factory=list)
    waiting: int = 0
    """Messages of [cursor, pumped) that were never delivered."""
    retries: dict[int, Retry] = field(default_factory=dict)
    """What was in flight, requeued or deferred, by sequence number."""
    beyond_cursor: set[int] = field(default_factory=set)
    """Deferred messages at or behind the cursor that are in ``retries``, or finished already."""
    finished_early: list[int] = field(default_factory=list)
    """Messages that were finished before the cursor came to them; also those that it has passed since."""


@dataclass
class TopicState:
    """A topic as it was found at start."""

    id: int
    name: str
    next: int
    """The sequence number of its next message."""
    pumped: int = 0
    """Messages below it belong to the channels; those from it on wait in the topic."""
    paused: bool = False
    depth: int = 0
    """Messages that wait in the topic."""
    channels: dict[str, ChannelState] = field(default_factory=dict)

    def declaration(self) -> Declaration:
        """What the log says of it."""
        channels = {one.name: Declared(one.id, one.cursor, one.paused) for one in list(self.channels.values())}
        return Declaration(self.name, self.pumped, self.paused, channels)


class TopicSave(NamedTuple):
    """A topic's position, to be kept. What has it below ``pumped`` must be committed: a Declare that names its channels."""

    id: int
    pumped: int
    emptied: tuple[tuple[int, int], ...] = ()
    """Ranges [low, high) of messages that nobody shall get."""


class ChannelSave(NamedTuple):
    """A declared channel's state, to be kept. What is below ``cursor`` and in neither of the others is finished."""

    id: int
    topic: int
    name: str
    cursor: int
    inflight: Iterable[int]
    put: Mapping[int, Retry]
    """Requeued, timed out or deferred since the last save, by sequence number."""
    drop: Iterable[int]
    """Finished since the last save, of those that were ``put``."""
    clear: bool = False
    """Forget first all that was ``put`` before."""


class Correction(NamedTuple):
    """So many messages of a topic as [low, high) has were counted too many; or, with ``there``, too few."""

    topic: int
    low: int
    high: int
    there: bool = False
    lost: bool = False
    """The log has none of these: nobody shall wait for them. Else they may be there, by another row of the index."""

    def within(self, low: int, high: int) -> int:
        """By how much the count of [low, high) changes."""
        count = max(0, min(self.high, high) - max(self.low, low))
        return count if self.there else -count
