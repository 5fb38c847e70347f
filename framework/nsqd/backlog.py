"""What waits in a channel: a window of decoded batches over the log, or over memory where nothing is kept on disk."""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING

import gevent

from framework.nsqd.lease import Message
from framework.nsqd.store import Batch, ChannelState, Correction
from framework.nsqd.store.record import bodies

if TYPE_CHECKING:
    from framework.nsqd.channel import Channel

_WINDOW_BYTES = 256 << 10
_SIZE = struct.Struct(">i")
_FETCH = 500
"""Bodies read from the log at once for messages that are tried again, of ``_WINDOW_BYTES`` together, or one."""
_RETRY_SECONDS = 1.0


class Backlog:
    """The batches of one channel that were not delivered yet, oldest first."""

    def __init__(self, channel: Channel, state: ChannelState) -> None:
        self._channel = channel
        self._topic = channel.topic
        self.waiting = state.waiting
        """Messages that were never delivered, in memory or not."""
        self.done_ahead = state.done
        """Deferred messages that were finished before the cursor came to them: their rows go when it has passed them."""
        self._ahead = state.ahead
        self._next = state.cursor
        self._batches: deque[Batch] = deque()
        self._done = 0
        self._offset = 0
        self._bytes = 0
        self._loaded = 0
        self._late = 0
        """Messages that came since the last reading of the log began: they are not in its answer."""
        self._generation = 0
        self._reading = self._fetching = False

    @property
    def cursor(self) -> int:
        """The lowest sequence number that was never delivered."""
        return self._batches[0].first + self._done if self._batches else self._next

    @property
    def end(self) -> int:
        """Behind the newest message of the channel."""
        return self._topic.pumped

    @property
    def in_memory(self) -> int:
        """How many messages are at hand."""
        return self._loaded

    def loaded(self) -> int:
        """How many messages are at hand; more are on their way when it is few."""
        if self._bytes < _WINDOW_BYTES // 2 and self._next < self.end:
            self.fill()
        return self._loaded

    def start_at(self, seq: int) -> None:
        """The topic's first sequence number became known."""
        self._next = max(self._next, seq)

    def offer(self, batch: Batch) -> None:
        """The topic hands over a new batch."""
        if self._channel.kept:
            self._count(batch.count)
            self.fill()
        elif self.waiting + batch.count <= self._topic.broker.options.mem_queue_size or not self.waiting:
            self.waiting += batch.count
            self._take(batch)
        # else dropped, as nsqd does with what an #ephemeral channel cannot hold

    def offer_stored(self, count: int) -> None:
        """The topic hands over ``count`` messages that the log has."""
        self._count(count)
        self.fill()

    def _count(self, count: int) -> None:
        self.waiting += count
        self._late += count

    # --- delivery ------------------------------------------------------------------------------------------------

    def piece(self) -> tuple[Batch, int, int] | None:
        """The oldest batch, how many of its messages are delivered, and where in its payload the next begins."""
        if not self._batches and not self.loaded():
            return None
        return (self._batches[0], self._done, self._offset) if self._batches else None

    def advance(self, count: int, offset: int) -> None:
        """``count`` messages of the oldest batch were delivered; the next begins at ``offset``."""
        self.waiting -= count
        self._loaded -= count
        self._done += count
        self._offset = offset
        batch = self._batches[0]
        if self._done == batch.count:
            self._batches.popleft()
            self._bytes -= batch.weight
            self._done = self._offset = 0

    def passed(self) -> list[int]:
        """Those of ``done_ahead`` that are below the cursor now; they leave it."""
        cursor = self.cursor
        below = [seq for seq in self.done_ahead if seq < cursor]
        if below:
            self.done_ahead = [seq for seq in self.done_ahead if seq >= cursor]
        return below

    def skip(self) -> None:
        """Forget all that waits."""
        self._generation += 1
        self._batches.clear()
        self._ahead.clear()
        self.done_ahead.clear()
        self._done = self._offset = self._bytes = self._loaded = self.waiting = 0
        self._next = self.end

    def correct(self, found: Correction) -> None:
        """Count anew what was not read yet; what was read is delivered whatever the log has now."""
        low, high = max(found.low, self._next), min(found.high, self.end)
        if low < high:
            ahead = {seq for seq in self._ahead if low <= seq < high}
            self._ahead -= ahead
            count = high - low - len(ahead)
            self.waiting = max(self._loaded, self.waiting + (count if found.there else -count))

    # --- the window ----------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Take batches from what was written lately, or have them read from the log."""
        while self._bytes < _WINDOW_BYTES and self._next < self.end and not self._reading:
            batch = self._topic.broker.recent.get((self._topic.id, self._next))
            if batch is None:
                self._reading = True
                gevent.spawn(self._read)
            else:
                self._take(batch)
        self._count_anew()

    def _count_anew(self) -> None:
        """When all that waits is at hand: an index made anew counts what was finished before its record was moved, too."""
        if self._next >= self.end and self._channel.kept:
            self.waiting = self._loaded

    def _read(self) -> None:
        generation, start, end = self._generation, self._next, self.end
        self._late = 0
        try:
            found = self._topic.broker.read(self._topic.id, start, _WINDOW_BYTES)
        except Exception as error:
            self._topic.broker.log("ERROR", f"CHANNEL({self._channel.name}): cannot read its backlog - {error}")
            gevent.sleep(_RETRY_SECONDS)
            found = []
        else:
            if not found and generation == self._generation:
                self._next = max(self._next, end)  # the log has none of these: it was emptied, or is damaged
                self.waiting = self._loaded + self._late
        self._reading = False
        if generation == self._generation:
            for batch in found:
                if batch.first < self.end:
                    self._take(batch)
            self._count_anew()
        self._channel.serve()

    def _take(self, batch: Batch) -> None:
        done = max(0, self._next - batch.first)
        if done >= batch.count:
            return
        self._next = batch.end
        if batch.due and self._deferred(batch):
            return
        if not self._batches:
            self._done, self._offset = done, _skip(batch.payload, done)
        self._batches.append(batch)
        self._bytes += batch.weight
        self._loaded += batch.count - done

    def _deferred(self, batch: Batch) -> bool:
        """Whether the batch, published to be deferred, was taken care of as such."""
        if batch.first in self._ahead:
            self._ahead.discard(batch.first)
            return True
        if batch.due <= self._topic.broker.clock.now():
            return False
        self.waiting -= 1
        (body,) = bodies(batch.payload, 1)
        self._channel.defer_new(Message(batch.first, batch.ts, 0, body), batch.due)
        return True

    # --- bodies of messages that are tried again -------------------------------------------------------------------

    def fetch(self, again: deque[Message]) -> bool:
        """Have the bodies of the first of ``again`` read; False: not at hand yet, the channel is served when they are."""
        if not self._fetching:
            self._fetching = True
            wanted = [message for message in list(again)[:_FETCH] if message.body is None]
            gevent.spawn(self._fetch, wanted)
        return False

    def _fetch(self, wanted: list[Message]) -> None:
        generation = self._generation
        try:
            found = self._topic.broker.bodies(self._topic.id, [message.seq for message in wanted], _WINDOW_BYTES)
        except Exception as error:
            self._topic.broker.log("ERROR", f"CHANNEL({self._channel.name}): cannot read messages - {error}")
            gevent.sleep(_RETRY_SECONDS)
        else:
            if generation == self._generation:
                self._take_bodies(wanted, found)
        self._fetching = False
        self._channel.serve()

    def _take_bodies(self, wanted: list[Message], found: dict[int, tuple[int, bytes] | None]) -> None:
        for message in wanted:
            if message.seq not in found:
                continue  # not looked for: it is read with the next
            if (one := found[message.seq]) is not None and message.body is None:
                message.ts, message.body = one
                self._channel.held += len(one[1])
        # Damaged on the disk; the storage has reported it.
        self._channel.give_up({seq for seq, one in found.items() if one is None})


def _skip(payload: bytes, count: int) -> int:
    """Where the message behind the first ``count`` begins."""
    offset = 0
    for _ in range(count):
        offset += 4 + int(_SIZE.unpack_from(payload, offset)[0])
    return offset
