"""What waits in a channel: a window of decoded batches over the log, or over memory where nothing is kept on disk.

It reads nothing and calls nobody: it says what is to be read, and returns what it came upon.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from framework.nsqd.lease import Message
from framework.nsqd.port import Owner
from framework.nsqd.store import Batch, ChannelState, Correction
from framework.nsqd.store.clock import Clock
from framework.nsqd.store.record import bodies

WINDOW_BYTES = 256 << 10
_SIZE = struct.Struct(">i")


class Found(NamedTuple):
    """What the channel has to deal with."""

    deferred: list[tuple[Message, int]]
    """Messages that are not due yet, and when they are, in ms of the store's clock."""
    missing: bool
    """What comes next is on the disk only: ``ask``, read it, ``answer``."""


class Asked(NamedTuple):
    """A reading of the log that is under way."""

    generation: object
    """Another one after all was emptied."""
    start: int
    """The sequence number to read from."""
    end: int


class Backlog:
    """The batches of one channel that were not delivered yet, oldest first."""

    _done: int
    """How many messages of the oldest batch were delivered, where there is one."""
    _offset: int
    """Where the next of it begins."""

    def __init__(
        self, topic: Owner, state: ChannelState, *, kept: bool, recent: Mapping[tuple[int, int], Batch], clock: Clock, most: int
    ) -> None:
        """``kept``: the log has the messages, and ``recent`` the newest of them. Else ``most`` of them are held here."""
        self._topic = topic
        self._kept = kept
        self._recent = recent
        self._clock = clock
        self._most = most
        self.waiting = state.waiting
        """Messages that were never delivered, in memory or not."""
        self.finished_early = state.finished_early
        """Deferred messages that were finished before the cursor came to them: their rows go when it has passed them."""
        self._beyond = state.beyond_cursor
        self._next = state.cursor
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self.loaded = 0
        """How many messages are at hand."""
        self._late = 0
        """Messages that came since the last reading of the log began: they are not in its answer."""
        self._generation = object()
        self._reading = False
        self._deferred: list[tuple[Message, int]] = []
        self._dropped: list[tuple[int, int]] = []
        """What the topic dropped before it handed it over, and a reading of the log may give all the same: from, to."""

    @property
    def cursor(self) -> int:
        """The lowest sequence number that was never delivered."""
        if self._batches:
            return self._batches[0].first + self._done
        return self._next if self._kept else self.end  # what is not held here is not waited for

    @property
    def end(self) -> int:
        """Behind the newest message of the channel."""
        return self._topic.pumped

    @property
    def is_low(self) -> bool:
        """Whether it is time to ``fill``. What is held here comes by ``offer`` alone: all else was dropped."""
        return self._kept and self._bytes < WINDOW_BYTES // 2 and self._next < self._topic.pumped

    def start_at(self, seq: int) -> None:
        """The topic's first sequence number became known."""
        self._next = max(self._next, seq)

    def offer(self, batch: Batch) -> Found | None:
        """The topic hands over a new batch."""
        if self._kept:
            return self.offer_stored(batch.count)
        if self.waiting + batch.count <= self._most or not self.waiting or batch.due > self._clock.now():
            self.waiting += batch.count
            self._take(batch)
        # else dropped, as nsqd does with what an #ephemeral channel cannot hold; it drops nothing that is deferred
        return self._found()

    def offer_stored(self, count: int) -> Found | None:
        """The topic hands over ``count`` messages that the log has."""
        self.waiting += count
        self._late += count
        return self.fill()

    # --- delivery ------------------------------------------------------------------------------------------------

    def piece(self) -> tuple[Batch, int, int] | None:
        """The oldest batch, how many of its messages are delivered, and where in its payload the next begins."""
        return (self._batches[0], self._done, self._offset) if self._batches else None

    def advance(self, count: int, offset: int) -> None:
        """``count`` messages of the oldest batch were delivered; the next begins at ``offset``."""
        self.waiting -= count
        self.loaded -= count
        self._done += count
        self._offset = offset
        batch = self._batches[0]
        if self._done == batch.count:
            self._batches.popleft()
            self._bytes -= batch.weight
            self._done = self._offset = 0

    def passed(self) -> list[int]:
        """Those of ``finished_early`` that are below the cursor now; they leave it."""
        cursor = self.cursor
        below = [seq for seq in self.finished_early if seq < cursor]
        if below:
            self.finished_early = [seq for seq in self.finished_early if seq >= cursor]
        return below

    def drop_older(self, cutoff: int) -> int:
        """Pass over what was published before ``cutoff`` (ns since 1970) and is at hand; how many messages that were."""
        dropped = 0
        while self._batches and self._batches[0].ts < cutoff:
            left = self._batches[0].count - self._done
            self.advance(left, 0)
            dropped += left
        return dropped

    def pass_over(self, low: int, high: int) -> None:
        """The topic dropped [low, high), which it had not handed over; the log has it until that is saved."""
        if not self._kept:
            return
        if self._next == low:
            self._next = high
        else:
            self._dropped.append((low, high))

    def skip(self) -> None:
        """Forget all that waits."""
        self._generation = object()
        self._batches.clear()
        self._beyond.clear()
        self.finished_early.clear()
        self._bytes = self.loaded = self.waiting = 0
        self._next = self.end

    def correct(self, found: Correction) -> None:
        """Count anew what was not read yet; what was read is delivered whatever the log has now."""
        unread = range(max(found.low, self._next), min(found.high, self.end))
        # Those that are to be tried again are not counted as waiting; unless they are lost, they still are.
        beyond = {seq for seq in self._beyond if seq in unread} if found.lost else set[int]()
        self._beyond -= beyond
        count = len(unread) - len(beyond)
        self.waiting = max(self.loaded, self.waiting + (count if found.there else -count))

    # --- the window ----------------------------------------------------------------------------------------------

    def fill(self) -> Found | None:
        """Take batches from what was written lately. None: there is nothing for the channel to deal with."""
        missing = False
        while self._bytes < WINDOW_BYTES and self._next < self._topic.pumped and not self._reading:
            batch = self._recent.get((self._topic.id, self._next))
            if batch is None:
                self._reading = missing = True
            else:
                self._take(batch)
        self._count_anew()
        return self._found(missing)

    def _found(self, missing: bool = False) -> Found | None:
        if not (missing or self._deferred):
            return None
        deferred, self._deferred = self._deferred, []
        return Found(deferred, missing)

    def _count_anew(self) -> None:
        """When all that waits is at hand: an index made anew counts what was finished before its record was moved, too."""
        if self._next >= self.end and self._kept:
            self.waiting = self.loaded

    def ask(self) -> Asked:
        """A reading begins, of up to ``WINDOW_BYTES``."""
        self._late = 0
        return Asked(self._generation, self._next, self.end)

    def answer(self, asked: Asked, found: Sequence[Batch] | None) -> Found | None:
        """What the log gave; None: it could not be read, and is to be asked again."""
        self._reading = False
        if asked.generation != self._generation:
            return None
        if found is not None and not found:
            self._next = max(self._next, asked.end)  # the log has none of these: it was emptied, or is damaged
            self.waiting = self.loaded + self._late
        for batch in found or ():
            if batch.first < self.end:
                self._take(batch)
        self._count_anew()
        return self._found()

    def _take(self, batch: Batch) -> None:
        done = max(0, self._next - batch.first)
        if done >= batch.count:
            return
        self._next = batch.end
        if (self._dropped and self._was_dropped(batch)) or (batch.due and self._is_deferred(batch)):
            return
        if not self._batches:
            self._done, self._offset = done, _skip(batch.payload, done)
        self._batches.append(batch)
        self._bytes += batch.weight
        self.loaded += batch.count - done

    def _was_dropped(self, batch: Batch) -> bool:
        self._dropped = [one for one in self._dropped if one[1] > batch.first]
        return any(low <= batch.first for low, _ in self._dropped)

    def _is_deferred(self, batch: Batch) -> bool:
        """Whether the batch, published to be deferred, was taken care of as such."""
        if batch.first in self._beyond:
            self._beyond.discard(batch.first)
            return True
        if batch.due <= self._clock.now():
            return False
        self.waiting -= 1
        (body,) = bodies(batch.payload, 1)
        self._deferred.append((Message(batch.first, batch.ts, 0, body), batch.due))
        return True


def _skip(payload: bytes, count: int) -> int:
    """Where the message behind the first ``count`` begins."""
    offset = 0
    for _ in range(count):
        offset += 4 + int(_SIZE.unpack_from(payload, offset)[0])
    return offset
