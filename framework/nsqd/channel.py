"""A channel: what waits, what is in flight, what is due later, and the delivery loop. It does no I/O.

``cursor`` is the lowest sequence number that was never delivered. What is below it is in flight, waits for another
try (``again``), is due later (``deferred``), or else is finished: finishing is the deletion of a dictionary's key.
"""

from __future__ import annotations

import heapq
import struct
import time
from array import array
from collections import deque
from collections.abc import Container
from typing import TYPE_CHECKING, Protocol

from framework.alarm import Alarm
from framework.names import EPHEMERAL
from framework.nsqd import turns
from framework.nsqd.backlog import Backlog
from framework.nsqd.lease import Leases, Message
from framework.nsqd.store import ChannelSave, ChannelState, Correction, Pending
from framework.nsqd.store.index import FINISHED
from framework.transports.nsq.wire import FRAME_MESSAGE

if TYPE_CHECKING:
    from framework.nsqd.topic import Topic

_PREFIX = struct.Struct(">iiqH")
_SIZE = struct.Struct(">i")
_CHUNK = 500
"""The most messages that one client gets before the next has its turn."""
_CHUNK_BYTES = 1 << 18
"""About as many bytes of them as a client gets before it is seen whether its buffer is full."""
_HELD_BYTES = 1 << 20
"""About as many bytes of bodies in flight as one client keeps in memory; of the others the log has to give them again."""
_WAITING_BYTES = 4 << 20
"""Likewise, of what waits in one channel for its time or for another try."""
_TURN = 2000
"""The most that is delivered, or becomes due, before other work on the hub has its turn."""


class Consumer(Protocol):
    """A client that is subscribed, as the channel sees it."""

    leases: Leases
    sample_rate: int

    def room(self) -> int:
        """How many more messages it may be sent now: RDY less what is in flight; 0 while its buffer is full."""

    def send(self, frames: list[bytes], count: int) -> None:
        """Message frames for it, buffered; ``count`` messages."""

    def sampled(self) -> bool:
        """Whether this one message is for it (sample_rate)."""

    def close(self, reason: str) -> None: ...


class Channel:
    """One channel of a topic. Everything here runs on the hub."""

    def __init__(self, topic: Topic, state: ChannelState, *, declared: bool = False) -> None:
        self.topic = topic
        self.id = state.id
        self.name = state.name
        self.ephemeral = state.name.endswith(EPHEMERAL)
        self.kept = not (self.ephemeral or topic.ephemeral)
        """Whether its state and messages are on the disk."""
        self.declared = declared or not self.kept
        """Whether the log knows it, if it has to. Before that, and after it was deleted, nothing is saved of it."""
        self.paused = state.paused
        self.clients: list[Consumer] = []
        self.holders: list[Leases] = []
        """In flight, by client; those of clients that left stay until they time out."""
        self.backlog = Backlog(self, state)
        self.again: deque[Message] = deque()
        self.deferred: list[tuple[float, int, Message]] = []
        """A heap by due time (monotonic seconds)."""
        self.message_count = self.requeue_count = self.timeout_count = 0
        self.dirty = False
        self._alarm = Alarm(self._release)
        self._put: dict[int, Pending] = {}
        self._drop: set[int] = set()
        self._clear = False
        self._serving = self._awaited = False
        self._delivery = f"CHANNEL({topic.name}/{state.name}): nothing was delivered"
        self.held = 0
        """Bytes of the bodies in ``again`` and ``deferred``."""
        self._resume(state.pending)

    def _resume(self, pending: dict[int, Pending]) -> None:
        for seq, one in sorted(pending.items()):
            message = Message(seq, 0, one.attempts, None)
            if one.due > self.topic.broker.clock.now():
                self._defer(message, one.due)
            else:
                self._note(message, 0)
                self.again.append(message)

    @property
    def cursor(self) -> int:
        return self.backlog.cursor

    @property
    def depth(self) -> int:
        """Messages that could be delivered now."""
        return self.backlog.waiting + len(self.again)

    @property
    def in_flight_count(self) -> int:
        return sum(len(leases.messages) for leases in self.holders)

    def touched(self) -> None:
        """Its state changed: to be saved with the next round."""
        if self.kept and self.declared and not self.dirty:
            self.dirty = True
            self.topic.broker.changed.append(self)

    def begin(self, seq: int) -> None:
        """Its declaration is committed: the messages from ``seq`` on are its own."""
        self.declared = True
        self.backlog.start_at(seq)
        self.touched()

    # --- clients -----------------------------------------------------------------------------------------------

    def subscribe(self, client: Consumer) -> None:
        self.clients.append(client)
        self.holders.append(client.leases)

    def unsubscribe(self, client: Consumer) -> None:
        """The client is gone; what it had in flight waits out its lease."""
        if client in self.clients:
            self.clients.remove(client)
            self._forget_holder(client.leases)
            if self.kept:
                client.leases.forget_bodies()

    def _forget_holder(self, leases: Leases) -> None:
        if not leases.messages and leases in self.holders and all(one.leases is not leases for one in self.clients):
            self.holders.remove(leases)

    def new_leases(self, duration: float) -> Leases:
        """For a client whose msg_timeout is ``duration`` seconds."""
        return Leases(duration, self.topic.broker.options.max_msg_timeout, self._timed_out)

    # --- delivery ----------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Give every client what it has room for; whatever is too much for one turn follows in the next."""
        if self.paused or not self.clients or self._serving or not self.declared:
            return
        self._serving = True
        try:
            left = _TURN
            while left > 0 and (sent := self._round()):
                left -= sent
            self.topic.broker.health.works(self._delivery)
        except Exception as error:  # not the business of whoever committed or published what is to be delivered
            self.topic.broker.health.fails(self._delivery, error)
        finally:
            self._serving = False
        if left <= 0:
            self._serve_soon()

    def _serve_soon(self) -> None:
        if not self._awaited:
            self._awaited = True
            turns.soon(self._serve_awaited)

    def _serve_awaited(self) -> None:
        self._awaited = False
        self.serve()

    def _round(self) -> int:
        """One share for each client that has room, beginning with another one each time; returns how many were sent."""
        clients = [client for client in self.clients if client.room() > 0]
        ready = self.backlog.loaded() + len(self.again)
        if not clients or not ready:
            return 0
        self.clients.append(self.clients.pop(0))
        share = min(_CHUNK, -(-ready // len(clients)))
        return sum(self._give(client, share) for client in clients)

    def _give(self, client: Consumer, share: int) -> int:
        count = min(share, client.room())
        now = time.monotonic()
        done = 0
        while done < count and client.room() > 0:
            if self.again and self.again[0].turn <= self.cursor:
                given = self._give_again(client, now)
            else:
                given = self._give_next(client, count - done, now)
            if not given:
                break
            done += given
        if done:
            client.leases.watch()
            self.touched()
        return done

    def _give_again(self, client: Consumer, now: float) -> int:
        message = self.again[0]
        if message.body is None and not self.backlog.fetch(self.again):
            return 0
        self.again.popleft()
        body = message.body
        assert body is not None
        self.held -= len(body)
        if client.sample_rate and not client.sampled():
            self._finished(message)
            return 1
        message.attempts = message.attempts + 1 & 0xFFFF
        message.delivered = now
        message.deadline = now + client.leases.duration
        message_id = message.id
        client.leases.messages[message_id] = message
        if self.kept and len(client.leases.messages) * len(body) > _HELD_BYTES:
            message.body = None
        client.send([_PREFIX.pack(len(body) + 30, FRAME_MESSAGE, message.ts, message.attempts), message_id, body], 1)
        return 1

    def _give_next(self, client: Consumer, count: int, now: float) -> int:
        """Up to ``count`` messages of the log's next batch: the hot path."""
        piece = self.backlog.piece()
        if piece is None:
            return 0
        batch, done, offset = piece
        mean = len(batch.payload) // batch.count
        count = min(count, batch.count - done, 1 + _CHUNK_BYTES // mean)
        if self.again:
            count = min(count, max(1, self.again[0].turn - self.cursor))
        first, ts, payload = batch.first + done, batch.ts, batch.payload
        ids = array("Q", range(first, first + count))
        ids.byteswap()
        hexes = ids.tobytes().hex().encode()
        deadline = now + client.leases.duration
        messages, sampling = client.leases.messages, client.sample_rate
        holds = not self.kept or (len(messages) + count) * mean <= _HELD_BYTES
        frames: list[bytes] = []
        prefix, known, sent = b"", -1, 0
        for at in range(count):
            (size,) = _SIZE.unpack_from(payload, offset)
            body = payload[offset + 4 : offset + 4 + size]
            offset += 4 + size
            if sampling and not client.sampled():
                continue
            if size != known:
                prefix, known = _PREFIX.pack(size + 30, FRAME_MESSAGE, ts, 1), size
            message_id = hexes[16 * at : 16 * at + 16]
            messages[message_id] = Message(first + at, ts, 1, body if holds else None, now, deadline)
            frames += (prefix, message_id, body)
            sent += 1
        self.backlog.advance(count, offset)
        if frames:
            client.send(frames, sent)
        return count

    # --- settling ----------------------------------------------------------------------------------------------

    def finish(self, client: Consumer, message_id: bytes) -> str | None:
        """None when done, else nsqd's words for why not."""
        message = client.leases.messages.pop(message_id, None)
        if message is None:
            return self._refusal(message_id)
        self._finished(message)
        return None

    def _finished(self, message: Message) -> None:
        if message.noted:
            self._settle_note(message)
        self.touched()

    def _settle_note(self, message: Message) -> None:
        if message.seq >= self.cursor:
            self._put[message.seq] = Pending(FINISHED, 0)
            self.backlog.done_ahead.append(message.seq)
        else:
            self._put.pop(message.seq, None)
            self._drop.add(message.seq)

    def requeue(self, client: Consumer, message_id: bytes, delay: float) -> str | None:
        """Deliver it again after ``delay`` seconds; as ``finish``."""
        message = client.leases.messages.pop(message_id, None)
        if message is None:
            return self._refusal(message_id)
        self.requeue_count += 1
        if delay > 0:
            self._defer(message, int(self.topic.broker.clock.now() + delay * 1000), delay)
        else:
            self._hold(message)
            self._to_tail(message)
        return None

    def touch(self, client: Consumer, message_id: bytes) -> str | None:
        return None if client.leases.touch(message_id) else self._refusal(message_id)

    def _refusal(self, message_id: bytes) -> str:
        if any(message_id in leases.messages for leases in self.holders):
            return "client does not own message"
        return "ID not in flight"

    def _timed_out(self, leases: Leases, message: Message) -> None:
        self.timeout_count += 1
        self._forget_holder(leases)
        self._hold(message)
        self._to_tail(message)
        self._serve_soon()

    def _to_tail(self, message: Message) -> None:
        self._note(message, 0)
        # Behind what is there now; but with a long backlog not behind all of it, as nsqd's memory queue would not be.
        message.turn = min(self.backlog.end, self.cursor + self.topic.broker.options.mem_queue_size)
        self.again.append(message)

    def defer_new(self, message: Message, due: int) -> None:
        """A message that was published to be delivered at ``due`` (ms since 1970)."""
        self._defer(message, due)

    def _defer(self, message: Message, due: int, delay: float | None = None) -> None:
        if delay is None:  # as the disk has it: a flipped bit, or a clock that was lost, holds nothing for years
            now = self.topic.broker.clock.now()
            delay = min((due - now) / 1000, self.topic.broker.options.max_req_timeout)
            due = int(now + delay * 1000)
        self._note(message, due)
        when = time.monotonic() + delay
        self._hold(message)
        heapq.heappush(self.deferred, (when, message.seq, message))
        self._alarm.set(when)

    def _hold(self, message: Message) -> None:
        """It waits from here on; with its body in memory if there is room, else the log has to give it again."""
        if message.body is None:
            return
        if self.kept and self.held + len(message.body) > _WAITING_BYTES:
            message.body = None
        else:
            self.held += len(message.body)

    def _note(self, message: Message, due: int) -> None:
        if not self.kept:
            return
        message.noted = True
        self._drop.discard(message.seq)
        self._put[message.seq] = Pending(due, message.attempts)
        self.touched()

    def _release(self) -> None:
        """What is due goes to the tail of what waits."""
        now = time.monotonic()
        for _ in range(_TURN):
            if not self.deferred or self.deferred[0][0] > now:
                break
            self._to_tail(heapq.heappop(self.deferred)[2])
        if self.deferred:
            self._alarm.set(self.deferred[0][0])
        self.serve()

    # --- damage ------------------------------------------------------------------------------------------------

    def correct(self, found: Correction) -> None:
        """The log has fewer messages than were counted, or more."""
        self.backlog.correct(found)
        if not found.there:
            self.give_up(range(found.low, found.high))

    def give_up(self, gone: Container[int]) -> None:
        """The channel no longer waits for messages that the log cannot give again. Those that are in memory are delivered all
        the same."""
        lost = [one for one in (*self.again, *(entry[2] for entry in self.deferred)) if one.body is None and one.seq in gone]
        if not lost:
            return
        numbers = {one.seq for one in lost}
        kept = [one for one in self.again if one.seq not in numbers]
        self.again.clear()  # the same deque: the backlog may be reading for it
        self.again.extend(kept)
        self.deferred = [entry for entry in self.deferred if entry[2].seq not in numbers]
        heapq.heapify(self.deferred)
        for message in lost:
            self._finished(message)

    # --- administration ----------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Forget all that waits, is in flight or deferred; late FINs then fail."""
        self._forget()
        self.holders = [client.leases for client in self.clients]
        self._put, self._drop, self._clear = {}, set(), True
        self.touched()
        self.serve()

    def pause(self, paused: bool) -> None:
        self.paused = paused
        if self.kept:
            self.topic.broker.declare(self.topic)
        self.serve()

    def close(self) -> None:
        """It was deleted: its consumers' connections end. What it had stays on the disk until the log knows that it is gone."""
        self.declared = False
        for client in list(self.clients):
            client.close("the channel was deleted")
        self.clients.clear()
        self._forget()  # its messages are not small, and some references to it may last for a while

    def _forget(self) -> None:
        for leases in self.holders:
            leases.clear()
        self.again.clear()
        self.deferred.clear()
        self.held = 0
        self._alarm.cancel()
        self.backlog.skip()

    # --- saving ------------------------------------------------------------------------------------------------

    def snapshot(self) -> ChannelSave:
        """Its state as of now, and what changed since the last snapshot."""
        self.dirty = False
        put, self._put = self._put, {}
        drop, self._drop = self._drop, set()
        for seq in self.backlog.passed():
            put.pop(seq, None)
            drop.add(seq)
        clear, self._clear = self._clear, False
        inflight = [message.seq for leases in self.holders for message in leases.messages.values()]
        return ChannelSave(self.id, self.topic.id, self.name, self.cursor, inflight, put, drop, clear)

    def unsaved(self, save: ChannelSave) -> None:
        """That snapshot could not be kept: its changes belong to the next, unless all was emptied since."""
        if not self._clear:
            self._put = {**{seq: row for seq, row in save.put.items() if seq not in self._drop}, **self._put}
            self._drop |= {seq for seq in save.drop if seq not in self._put}
        self._clear |= save.clear
        self.touched()
