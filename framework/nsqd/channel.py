"""A channel: what waits, what is in flight, what is to be tried again, and who gets it. It does no I/O of its own.

``cursor`` is the lowest sequence number that was never delivered. What is below it is in flight, waits in ``retries``, or else
is finished: finishing is the deletion of a dictionary's key.
"""

from __future__ import annotations

import time
from collections.abc import Container
from typing import NamedTuple

import gevent

from framework.names import EPHEMERAL
from framework.nsqd import backlog, delivery
from framework.nsqd.backlog import Backlog, Found
from framework.nsqd.delivery import Consumer
from framework.nsqd.lease import Leases, Message
from framework.nsqd.port import Owner, Port
from framework.nsqd.retries import Retries
from framework.nsqd.serving import TURN, Serving
from framework.nsqd.store import Batch, ChannelSave, ChannelState, Correction, Retry
from framework.nsqd.unsaved import Unsaved

_CHUNK = 500
"""The most messages that one client gets before the next has its turn."""
_RETRY_SECONDS = 1.0


class ChannelChanged(NamedTuple):
    """Its state is to be saved with the next round."""

    channel: Channel


class Channel:
    """One channel of a topic. Everything here runs on the hub."""

    def __init__(self, topic: Owner, port: Port, state: ChannelState, *, declared: bool = False) -> None:
        self.topic = topic
        self._port = port
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
        most = port.options.mem_queue_size
        self.backlog = Backlog(topic, state, kept=self.kept, recent=port.recent, clock=port.clock, most=most)
        self.retries = Retries(self.kept, self._release)
        self.message_count = self.requeue_count = self.timeout_count = self.expired_count = 0
        self.dirty = False
        self._unsaved = Unsaved()
        self._fetching = False
        what = f"CHANNEL({topic.name}/{state.name}): nothing was delivered"
        self._serving = Serving(self.serve, self._round, port.health, what)
        self._resume(state.retries)

    def _resume(self, retries: dict[int, Retry]) -> None:
        for seq, one in sorted(retries.items()):
            message = Message(seq, 0, one.attempts, None)
            if one.due > self._port.clock.now():
                self._defer(message, one.due)
            else:
                self._note(message, 0)
                self.retries.ready.append(message)

    @property
    def cursor(self) -> int:
        return self.backlog.cursor

    @property
    def depth(self) -> int:
        """Messages that could be delivered now."""
        return self.backlog.waiting + len(self.retries.ready)

    @property
    def deferred(self) -> list[tuple[float, int, Message]]:
        """Messages that are not due yet."""
        return self.retries.deferred

    @property
    def in_flight_count(self) -> int:
        return sum(len(leases.messages) for leases in self.holders)

    def touched(self) -> None:
        """Its state changed: to be saved with the next round."""
        if not self.dirty and self.kept and self.declared:
            self.dirty = True
            self._port.emit(ChannelChanged(self))

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
        return Leases(duration, self._port.options.max_msg_timeout, self._timed_out)

    # --- what waits --------------------------------------------------------------------------------------------

    def offer(self, batch: Batch) -> None:
        """The topic hands over a new batch."""
        self._deal_with(self.backlog.offer(batch))

    def offer_stored(self, count: int) -> None:
        """The topic hands over ``count`` messages that the log has."""
        self._deal_with(self.backlog.offer_stored(count))

    def loaded(self) -> int:
        """How many messages are at hand; more are on their way when it is few."""
        if self.backlog.is_low:
            self._deal_with(self.backlog.fill())
        return self.backlog.loaded

    def _deal_with(self, found: Found | None) -> None:
        for message, due in found.deferred if found else ():
            self._defer(message, due)
        if found and found.missing:
            gevent.spawn(self._read)

    def _read(self) -> None:
        asked, found = self.backlog.ask(), None
        try:
            found = self._port.read(self.topic.id, asked.start, backlog.WINDOW_BYTES)
        except Exception as error:
            self._port.log("ERROR", f"CHANNEL({self.name}): cannot read its backlog - {error}")
            gevent.sleep(_RETRY_SECONDS)
        self._deal_with(self.backlog.answer(asked, found))
        self.serve()

    def fetch(self) -> None:
        """Have the bodies read of messages that are to be tried again; the channel is served when they are there."""
        if not self._fetching:
            self._fetching = True
            gevent.spawn(self._read_bodies, *self.retries.without_body())

    def _read_bodies(self, generation: int, wanted: list[Message]) -> None:
        try:
            found = self._port.bodies(self.topic.id, [one.seq for one in wanted], backlog.WINDOW_BYTES)
        except Exception as error:
            self._port.log("ERROR", f"CHANNEL({self.name}): cannot read messages - {error}")
            gevent.sleep(_RETRY_SECONDS)
        else:
            self.retries.take_bodies(generation, wanted, found)
            self._give_up({seq for seq, one in found.items() if one is None})  # damaged: the storage has reported it
        self._fetching = False
        self.serve()

    def correct(self, found: Correction) -> None:
        """The log has fewer messages than were counted, or more."""
        self.backlog.correct(found)
        if found.lost:
            self._give_up(range(found.low, found.high))

    def expire(self, cutoff: int) -> int:
        """Drop what was published before ``cutoff`` (ns since 1970) and is at hand; what comes back later, when it does."""
        old = [] if self._fetching else self.retries.older_than(cutoff)
        for message in old:
            self._finished(message)
        if count := len(old) + self.backlog.drop_older(cutoff):
            self.touched()
        self.expired_count += count
        return count

    def _give_up(self, gone: Container[int]) -> None:
        for message in self.retries.give_up(gone):
            self._finished(message)

    # --- delivery ----------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Give every client what it has room for."""
        if self.clients and self.declared and not self.paused:
            self._serving.rounds()

    def _round(self) -> int:
        """One share for each client that has room, beginning with another one each time; returns how many were sent."""
        clients = [client for client in self.clients if client.room() > 0]
        ready = self.loaded() + len(self.retries.ready)
        if not clients or not ready:
            return 0
        self.clients.append(self.clients.pop(0))
        share = min(_CHUNK, -(-ready // len(clients)))
        return sum(self._give(client, share) for client in clients)

    def _give(self, client: Consumer, share: int) -> int:
        count = min(share, client.room())
        now = time.monotonic()
        retries, done = self.retries, 0
        while done < count and client.room() > 0:
            if retries.ready and retries.ready[0].not_before <= self.cursor:
                given = self._give_retry(client, now)
            else:
                given = self._give_next(client, count - done, now)
            if not given:
                break
            done += given
        if done:
            client.leases.arm()
            self.touched()
        return done

    def _give_retry(self, client: Consumer, now: float) -> int:
        retries = self.retries
        message = retries.ready[0]
        if (body := message.body) is None:
            self.fetch()
            return 0
        retries.take_first(body)
        if retries.is_old(message):
            self.expired_count += 1
            self._finished(message)
        elif client.sample_rate and not client.sampled():
            self._finished(message)
        else:
            delivery.send_again(client, message, body, now, kept=self.kept)
        return 1

    def _give_next(self, client: Consumer, count: int, now: float) -> int:
        """Up to ``count`` messages of the log's next batch."""
        piece = self.backlog.piece()
        if piece is None and (not self.loaded() or (piece := self.backlog.piece()) is None):
            return 0
        batch, done, _ = piece
        count = min(count, batch.count - done, delivery.fitting(batch))
        if ready := self.retries.ready:
            count = min(count, max(1, ready[0].not_before - self.cursor))
        self.backlog.advance(count, delivery.send_next(client, piece, count, now, kept=self.kept))
        return count

    # --- settling ----------------------------------------------------------------------------------------------

    def finish(self, client: Consumer, message_id: bytes) -> str | None:
        """None when done, else nsqd's words for why not."""
        if (message := client.leases.messages.pop(message_id, None)) is None:
            return self._refusal(message_id)
        self._finished(message)
        return None

    def _finished(self, message: Message) -> None:
        if message.has_row:
            self._drop_row(message)
        if not self.dirty:
            self.touched()

    def _drop_row(self, message: Message) -> None:
        if message.seq >= self.cursor:
            self._unsaved.finish_early(message.seq)
            self.backlog.finished_early.append(message.seq)
        else:
            self._unsaved.drop(message.seq)

    def requeue(self, client: Consumer, message_id: bytes, delay: float) -> str | None:
        """Deliver it again after ``delay`` seconds, at once when they are none or negative; as ``finish``."""
        if (message := client.leases.messages.pop(message_id, None)) is None:
            return self._refusal(message_id)
        self.requeue_count += 1
        if delay > 0:
            self._defer(message, int(self._port.clock.now() + delay * 1000), delay)
        else:
            self.retries.keep_body(message)
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
        self.retries.keep_body(message)
        self._to_tail(message)
        self._serving.soon()

    def _to_tail(self, message: Message) -> None:
        if self.kept:  # and not by _note: whatever is requeued comes here
            self._unsaved.put(message, 0)
            if not self.dirty:
                self.touched()
        # Behind what is there now; but with a long backlog not behind all of it, as nsqd's memory queue would not be.
        message.not_before = min(self.backlog.end, self.cursor + self._port.options.mem_queue_size)
        self.retries.ready.append(message)

    def _defer(self, message: Message, due: int, delay: float | None = None) -> None:
        """Until ``due``, in ms of the store's clock, which is ``delay`` seconds from now."""
        if delay is None:  # as the disk has it: a flipped bit, or a clock that was lost, holds nothing for years
            now = self._port.clock.now()
            delay = min((due - now) / 1000, self._port.options.max_req_timeout)
            due = int(now + delay * 1000)
        self._note(message, due)
        self.retries.defer(message, delay)

    def _note(self, message: Message, due: int) -> None:
        if self.kept:
            self._unsaved.put(message, due)
            self.touched()

    def _release(self) -> None:
        """What is due goes to the tail of what waits."""
        for message in self.retries.due(TURN):
            self._to_tail(message)
        self.serve()

    # --- administration ----------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Forget all that waits, is in flight or deferred; late FINs then fail."""
        self._forget()
        self.holders = [client.leases for client in self.clients]
        self._unsaved.clear()
        self.touched()
        self.serve()

    def pause(self, paused: bool) -> None:
        self.paused = paused
        if self.kept:
            self.topic.declare(self.name)
        self.serve()

    def close(self) -> None:
        """It was deleted: its consumers' connections end. What it had stays on the disk until the log knows that it is gone."""
        self.declared = False
        for client in list(self.clients):
            client.close("the channel was deleted")
        self.clients.clear()
        self._forget()  # its messages are not small, and some references to it may last for a while

    def forget_leases(self) -> None:
        """Its leases end no more: it was deleted, or its nsqd stops and the next one delivers what is in flight."""
        for leases in self.holders:
            leases.clear()

    def _forget(self) -> None:
        self.forget_leases()
        self.retries.clear()
        self.backlog.skip()

    # --- saving ------------------------------------------------------------------------------------------------

    def snapshot(self) -> ChannelSave:
        """Its state as of now, and what changed since the last snapshot."""
        self.dirty = False
        changes = self._unsaved.take(self.backlog.passed())
        inflight = [message.seq for leases in self.holders for message in leases.messages.values()]
        return ChannelSave(self.id, self.topic.id, self.name, self.cursor, inflight, *changes)

    def unsaved(self, save: ChannelSave) -> None:
        """That snapshot could not be kept."""
        self._unsaved.give_back(save)
        self.touched()
