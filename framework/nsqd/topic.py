"""A topic: numbers for its messages, and the hand-over of each committed batch to every channel that it has.

``pumped`` is saved, and what is below it is the channels' affair alone. So it moves past a message only when every channel
that gets it is committed: a channel exists for its clients at once, and gets messages from the commit of its declaration on.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import gevent
from gevent.event import Event

from framework.names import EPHEMERAL
from framework.nsqd import slices
from framework.nsqd.channel import Channel
from framework.nsqd.journal import Declares, Group
from framework.nsqd.port import Port
from framework.nsqd.store import Batch, ChannelState, Correction, Declaration, Declared, Entry, TopicSave, TopicState

_READ_BYTES = 1 << 20
_RETRY_SECONDS = 1.0
_FEW = 64
"""Channels that are named each time that one of them changes."""


class TopicChanged(NamedTuple):
    """Its state is to be saved with the next round."""

    topic: Topic


class Made(NamedTuple):
    """A channel of the topic, or the topic itself, is there from now on."""

    topic: Topic
    channel: str = ""


class Gone(NamedTuple):
    """Likewise, no more."""

    topic: Topic
    channel: str = ""


class Emptied(NamedTuple):
    """Nobody shall get the messages [low, high)."""

    topic: int
    low: int
    high: int


class Deserted(NamedTuple):
    """An #ephemeral topic whose last channel has gone."""

    topic: Topic


class Topic:
    """One topic. Messages below ``pumped`` belong to its channels; the others wait here for a channel or an unpause."""

    def __init__(self, port: Port, state: TopicState) -> None:
        self.port = port
        self.id = state.id
        self.name = state.name
        self.ephemeral = state.name.endswith(EPHEMERAL)
        self.next = state.next
        self.pumped = state.pumped
        self.paused = state.paused
        self.depth = state.depth
        self.message_count = self.message_bytes = self.expired_count = self.refused_count = 0
        self.deleted = False
        self.declared: Group | None = None
        """The commit that makes its name, channels and pauses durable."""
        self.dirty = False
        self.complete = Event()
        """It has the channels that it has at other nsqds; until then its messages wait."""
        self.complete.set()
        self._in_memory: deque[Batch] = deque()
        """An #ephemeral topic's own messages: they have no other place."""
        self._emptied: list[tuple[int, int]] = []
        self._reading = False
        """What waits is being read for channels that have no other place for it."""
        self._changed: set[str] = set()
        """Channels that are not in the log as they are."""
        self._named = 0
        """Channels that were named as changed since all of them were."""
        self.channels: dict[str, Channel] = {one.name: Channel(self, port, one, declared=True) for one in state.channels.values()}
        self._kept_channels = len(self.channels)
        if self.ephemeral:
            self.start_at(time.time_ns())

    def touched(self) -> None:
        """Its state changed: to be saved with the next round."""
        if not self.dirty and not self.ephemeral:
            self.dirty = True
            self.port.emit(TopicChanged(self))

    # --- messages ----------------------------------------------------------------------------------------------

    def start_at(self, seq: int) -> None:
        """The number of its first message, as its declaration in the log has it."""
        if not self.next:
            self.next = self.pumped = seq
            for channel in self.channels.values():
                channel.backlog.start_at(seq)

    def recorded(self, first: int, said: Declaration) -> None:
        """A declaration is committed: its channels get messages from here on, the first one what waited."""
        self.start_at(first)
        self._named = self._named + len(said.channels) + len(said.gone) if said.changes else 0
        for name, one in said.channels.items():
            channel = self.channels.get(name)
            if channel is None or channel.id != one.id:
                continue
            if channel.paused == one.paused:
                self._changed.discard(name)
            if not channel.declared:
                channel.begin(self.pumped)
        gone = said.gone if said.changes else self._changed - said.channels.keys()
        self._changed.difference_update([name for name in gone if name not in self.channels])
        self._hand_over()

    def put_in_memory(self, entry: Entry) -> None:
        """A publish to an #ephemeral topic: done at once, and gone with the process."""
        batch = Batch(self.id, self.next, entry.count, time.time_ns(), entry.due, entry.payload)
        self.committed(batch)
        self.serve()

    def committed(self, batch: Batch) -> None:
        """The log has the batch: from here on it is delivered."""
        self.message_count += batch.count
        self.message_bytes += len(batch.payload) - 4 * batch.count
        self.next = batch.end
        if receivers := self._receivers_now:
            self.pumped = batch.end
            for channel in receivers:
                channel.message_count += batch.count
                channel.offer(batch)
        elif not self.ephemeral:
            self.depth += batch.count
        elif self.depth + batch.count <= self.port.options.mem_queue_size or not self.depth:
            self._in_memory.append(batch)
            self.depth += batch.count
        self.touched()

    def serve(self) -> None:
        for channel in list(self.channels.values()):
            channel.serve()

    @property
    def _receivers(self) -> list[Channel]:
        """The channels that get messages."""
        return [channel for channel in self.channels.values() if channel.declared]

    @property
    def _receivers_now(self) -> list[Channel]:
        """Those that a message goes to at once; none where it waits here."""
        return [] if self.paused or self._reading or not self.complete.is_set() else self._receivers

    @property
    def _flows(self) -> bool:
        """Whether messages go to the channels."""
        return bool(self._receivers_now)

    def await_channels(self) -> None:
        """Keep messages until ``release``."""
        self.complete.clear()

    def release(self) -> None:
        self.complete.set()
        self._hand_over()

    def _hand_over(self) -> None:
        """All that waited here goes to the channels that get messages now."""
        if self.pumped == self.next or not self._flows:
            return
        if not self.ephemeral and any(not channel.kept for channel in self._receivers):
            self._reading = True
            gevent.spawn(self._read_and_hand_over)
            return
        waited, self._in_memory = self._in_memory, deque()
        self._pass(waited)

    def _pass(self, waited: Sequence[Batch]) -> None:
        """``waited`` is what waited, for channels that keep nothing on the disk."""
        count = self.depth
        self.pumped, self.depth = self.next, 0
        for channel in self._receivers:
            channel.message_count += count
            if channel.kept:
                channel.offer_stored(count)
            else:
                for batch in waited:
                    channel.offer(batch)
        self.touched()
        slices.soon(self.serve)

    def _read_and_hand_over(self) -> None:
        """An #ephemeral channel holds copies. Once it has them the log's may go, so they are read before ``pumped`` moves."""
        low = self.pumped
        try:
            waited = self._read_waiting()
        finally:
            self._reading = False
        if self.pumped == low and self._flows:
            self._pass([batch for batch in waited if batch.first < self.next])  # the log may be ahead of the hub
        else:
            self._hand_over()  # meanwhile it was emptied, or paused

    def _read_waiting(self) -> list[Batch]:
        """What waits here, as far as an #ephemeral channel can hold it; blocks the greenlet until the log gives it."""
        room, at, found = self.port.options.mem_queue_size, self.pumped, list[Batch]()
        while room > 0 and at < self.next and not self.deleted:
            try:
                read = self.port.read(self.id, at, _READ_BYTES)
            except Exception as error:
                self.port.log("ERROR", f"TOPIC({self.name}): cannot read what waits - {error}")
                gevent.sleep(_RETRY_SECONDS)
                continue
            found += read
            room -= sum(batch.count for batch in read)
            at = read[-1].end if read else self.next
        return found

    @property
    def unfinished(self) -> int:
        """Messages that wait here, and those that the channel has which is furthest behind."""
        counts = (one.depth + one.in_flight_count + len(one.deferred) for one in self.channels.values())
        return self.depth + max(counts, default=0)

    def expire(self, cutoff: int) -> int:
        """Drop what waits here and was published before ``cutoff`` (ns since 1970), as far as one reading of the log goes; how
        many messages that were. Blocks the greenlet. To be saved before the log is read again."""
        low, waiting = self.pumped, list(self._in_memory)
        if not self.depth or self._reading:
            return 0
        if not self.ephemeral:
            waiting = self.port.read(self.id, low, _READ_BYTES)
        if self.pumped != low or self.deleted:
            return 0  # meanwhile it was handed over, or emptied
        old = list(takewhile(lambda one: one.ts < cutoff and one.first < self.next, waiting))
        if not old:
            return 0
        self._drop_until(old[-1].end)
        count = sum(batch.count for batch in old)
        self.depth = max(0, self.depth - count)
        self.expired_count += count
        return count

    def _drop_until(self, seq: int) -> None:
        self._emptied.append((self.pumped, seq))
        self.port.emit(Emptied(self.id, self.pumped, seq))
        for channel in self.channels.values():
            channel.backlog.pass_over(self.pumped, seq)
        self.pumped = seq
        while self._in_memory and self._in_memory[0].end <= seq:
            self._in_memory.popleft()
        self.touched()

    # --- channels ------------------------------------------------------------------------------------------------

    def channel(self, name: str) -> Channel:
        """The channel, made if there is none. It gets messages once it is declared, the first one also what waited here."""
        found = self.channels.get(name)
        if found is None:
            found = self.channels[name] = Channel(self, self.port, ChannelState(_new_id(), name, self.pumped))
            self._kept_channels += found.kept
            self.port.log("INFO", f"TOPIC({self.name}): new channel({name})")
            self.port.emit(Made(self, name))
            if found.kept:
                self.declare(name)
            else:
                self._hand_over()
        return found

    def delete_channel(self, name: str) -> None:
        """Close its consumers' connections and forget its messages."""
        channel = self.channels.pop(name)
        self._kept_channels -= channel.kept
        self.port.log("INFO", f"TOPIC({self.name}): deleting channel {name}")
        channel.close()
        if channel.kept:
            self.declare(name)
        self.port.emit(Gone(self, name))
        if not self.channels and self.ephemeral:
            self.port.emit(Deserted(self))

    def client_left(self, channel: Channel) -> None:
        """An #ephemeral channel goes with its last client."""
        if channel.ephemeral and not channel.clients and self.channels.get(channel.name) is channel:
            self.delete_channel(channel.name)

    # --- administration --------------------------------------------------------------------------------------------

    def pause(self, paused: bool) -> None:
        """While paused, messages wait in the topic."""
        self.paused = paused
        self.declare()
        self._hand_over()

    def empty(self) -> None:
        """Drop what waits in the topic; what its channels have stays."""
        if self.pumped < self.next:
            self._drop_until(self.next)
            self.depth = 0

    def close(self) -> None:
        """It was deleted: so are its channels."""
        self.deleted = True
        self.complete.set()
        for channel in list(self.channels.values()):
            channel.close()
        self.channels.clear()
        self._in_memory.clear()

    def correct(self, found: Correction) -> None:
        """The log has fewer messages than were counted, or more."""
        if (waiting := found.within(self.pumped, self.next)) and not self.ephemeral:
            self.depth = max(0, self.depth + waiting)
        for channel in self.channels.values():
            if channel.kept:
                channel.correct(found)

    # --- saving --------------------------------------------------------------------------------------------------

    def declare(self, changed: str = "") -> None:
        """Have the log know its name, channels and pauses. ``changed``: the channel that is new, gone or paused."""
        if not self.ephemeral:
            if changed:
                self._changed.add(changed)
            self.port.emit(Declares(self))

    def settle(self) -> None:
        """Return when what was declared is on the disk. Raises NotStored."""
        if self.declared is not None:
            if self.declared.error is not None:
                self.declare()
            self.declared.wait()

    def declaration(self) -> Declaration:
        """What the log shall know of it: all that it has where that is little, else what changed."""
        # Once in a while all, so that what damage costs is little, and as much has changed by then.
        if self.deleted or not self.next or self._kept_channels <= _FEW or self._named > self._kept_channels:
            channels = {one.name: Declared(one.id, one.cursor, one.paused) for one in self.channels.values() if one.kept}
            return Declaration(self.name, self.pumped, self.paused, channels, dropped=self.deleted)
        there = [one for name in self._changed if (one := self.channels.get(name)) is not None]
        channels = {one.name: Declared(one.id, one.cursor, one.paused) for one in there}
        gone = tuple(self._changed - channels.keys())
        return Declaration(self.name, self.pumped, self.paused, channels, changes=True, gone=gone, total=self._kept_channels)

    def snapshot(self) -> TopicSave:
        """Its state as of now."""
        self.dirty = False
        emptied, self._emptied = tuple(self._emptied), []
        return TopicSave(self.id, self.pumped, emptied)

    def unsaved(self, save: TopicSave) -> None:
        """That snapshot could not be kept."""
        self._emptied = list(save.emptied) + self._emptied
        self.touched()


def _new_id() -> int:
    """A number that no channel has or had."""
    return secrets.randbits(62) or 1
