"""One subscription of one handler to one broker, by POP, on a session that it shares: asks as granted, says what is settled.

A broker does not say that a lease is over, and takes an ACK after that as any other: so leases are counted here, by what the
broker is known to have done, and nothing is said of what is over. Source: PopMessageProcessor of RocketMQ 5.3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from time import monotonic, time

from gevent import monkey
from gevent.hub import get_hub

from framework.alarm import Countdown
from framework.errors import AlreadySettled, FrameworkError
from framework.message import Message
from framework.observe import hublog
from framework.transports.contract import TOUCH_AT, Limits, Receiver
from framework.transports.lease_guard import LeaseGuard
from framework.transports.rocketmq import requests, set_back
from framework.transports.rocketmq.clock import Born
from framework.transports.rocketmq.delivery import APART, Delivery, Leases
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.opening import Opener
from framework.transports.rocketmq.pops import Pops
from framework.transports.rocketmq.queues import Past
from framework.transports.rocketmq.refusals import Refusals
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.settling import SIZE, Settling
from framework.transports.rocketmq.urls import Options
from framework.transports.rocketmq.wire import handles
from framework.transports.rocketmq.wire.codes import LASTING, Answer, Request
from framework.transports.rocketmq.wire.errors import error_of
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.rocketmq.wire.stored import Record

log = hublog.get(__name__)
_get_ident = monkey.get_original("_thread", "get_ident")

CLOSE_FLUSH = 1.0
EARLY = 0.5
"""The part of its time that a POP waits for messages at least: one whose clock differs from ours may wait for less."""
_EXPIRED = "its lease is over by what its broker said: it is delivered again"


class PopConnection:
    """``contract.Connection`` by POP. Made on the hub that it will live on."""

    lasting_ids = False
    shown = True
    has_queues = False

    def __init__(
        self, session: Session, names: tuple[str, str, str], what: Subscription, receiver: Receiver, *, limits: Limits,
        options: Options, ended: Callable[[Session], None], past: Past, back: set_back.SetBack,
    ) -> None:  # fmt: skip
        """``names``: node, topic and channel; ``what`` has RocketMQ's. ``ended(session)``: it is not used here any more.
        ``past``: what its group remembers here; ``back`` looks whether it still is so."""
        self.node, self.topic, self.channel = names
        self.subscription = what
        self.limits = limits
        self.granted = 0
        self.in_flight: dict[Message, float] = {}
        self._session, self._options, self._receiver, self._ended = session, options, receiver, ended
        self._past, self._back, self._tally = past, back, receiver.tally
        self._thread = _get_ident()
        self._lease = limits.lease
        self._deliveries: dict[Message, Delivery] = {}
        self._tags = what.tag_set
        self._pops = Pops()
        self._unopened: list[tuple[handles.Popped, bytes, float, float]] = []
        """What came in this read. Where there is more, and no POP is under way any more, that is asked for before it is opened:
        a broker had nothing to do meanwhile."""
        self._coming = 0
        """Messages that may be in it."""
        self._opener = Opener(self)
        self._born = Born(told=session.signs)
        loop = get_hub().loop
        self._soon = Countdown(loop, APART)
        self._settling = Settling(session, what, options.lease, books=self, speak=self._speak, speak_soon=self._speak_soon)
        self._finish = self._settling.finish
        self._sent_size = 0
        self._spoken = False
        """It is among those that are collected next."""
        self._refusals = Refusals(self, "POP")
        self._touched: dict[Message, float] = {}
        """What was touched in the hub's place since it was blocked."""
        self._draining = self._drained = self._closing = self._closed = False
        leases = Leases(self._deliveries, limits.lease)
        self._guard = LeaseGuard(self, receiver, leases, words=_EXPIRED, regularly=self._look)
        self._deadline = loop.timer(CLOSE_FLUSH)
        session.attach(self)

    @property
    def rescuable(self) -> Session:
        """The socket that it shares."""
        return self._session

    @property
    def exposed(self) -> int:
        return 0 if self._closed else max(self.granted, len(self.in_flight) + self._coming + self._pops.outstanding)

    # --- what the engine says ------------------------------------------------------------------------------

    def grant(self, n: int) -> None:
        n = min(n, self.limits.max_grant)
        if n != self.granted and not (self._draining or self._closing or self._closed):
            self.granted = n
            self._speak()

    def finish(self, message: Message) -> None:
        """Past the guard where it would let it pass: most messages end here."""
        one = self._deliveries.pop(message, None)
        if one is None or one.over or monotonic() - one.began >= self._lease:
            if one is not None:
                self._deliveries[message] = one
            one = self._taken(message)
        else:
            del self.in_flight[message]
        self._finish(one)
        if not self._spoken:
            self._speak()

    def terminate(self, message: Message) -> None:
        self._settling.terminate(self._taken(message))

    def requeue(self, message: Message, delay: float) -> None:
        self._settling.requeue(self._taken(message), min(delay, requests.MAX_DELAY))

    def _taken(self, message: Message) -> Delivery:
        """Out of flight. The broker would take it as well from whoever is too late."""
        self._guard.take(message)
        return self._deliveries.pop(message)

    def touch(self, message: Message) -> None:
        self._guard.take(message)
        self.in_flight[message] = now = monotonic()
        self._settling.touch(self._deliveries[message], now)
        self._speak()

    def drain(self) -> None:
        self._draining, self.granted = True, 0
        self._speak()

    def unsent(self) -> int:
        return self._settling.waits * SIZE + self._sent_size

    def close(self) -> None:
        """What is in flight is given back: another worker need not wait until its lease is over."""
        if self._closing or self._closed:
            return
        self._closing, self.granted = True, 0
        for message in list(self.in_flight):
            try:
                self.requeue(message, 0.0)
            except AlreadySettled:  # its lease is over
                pass
        self._deadline.start(self._end, None)
        self._speak()

    def _speak(self) -> None:
        if not self._spoken and _get_ident() == self._thread:  # else it is said in the hub's place, or when the hub turns again
            self._spoken = True
            self._session.wants_to_speak(self)

    def _speak_soon(self) -> None:
        if _get_ident() == self._thread and not (self._soon.active or self._closed):
            self._soon.start(self._speak)

    # --- session.Owner -------------------------------------------------------------------------------------

    def turn(self) -> None:
        if self._settling.waits:
            self._receiver.settled(self)
        self._confirm()

    def _confirm(self) -> None:
        """What is over by now: a drain, settlements that are late, a close."""
        if self._closed:
            return
        late, self._settling.late = self._settling.late, 0
        if late:
            self._tally.lease_lost += late
            self._receiver.lost(self, None, _EXPIRED)
        if self._draining and not (self._drained or self._pops or self._unopened):
            self._drained = True
            self._receiver.drained(self)
        if self._closing and self._settling.idle:
            get_hub().loop.run_callback(self._end, None)

    def collect(self) -> None:
        self._spoken = False
        if self._closed:
            return
        self._settling.collect()
        if self._session.leaving or self._refusals.until:
            return
        now = monotonic()
        for count in self._pops.wanted(self.granted - len(self.in_flight) - self._coming):
            born, poll = self._born.of_pop(time(), self._options.poll)
            fields = requests.pop(self.subscription, count, self._options.lease, poll, born)
            then = partial(self._popped, count, now, now + EARLY * poll)
            self._session.put(None, Request.POP_MESSAGE, fields, then, wait=poll)

    def keep(self, now: float, expired: Collection[Message]) -> None:
        """What waits to be sent, and touches of what has held a third of its lease."""
        if self._closed:
            return
        for message, one in _snapshot(self._deliveries.items()):
            if message not in expired and not one.over and now - one.touched >= self.limits.lease * TOUCH_AT:
                self._settling.touch(one, now)
                self._touched[message] = now
        self._settling.collect()

    def resumed(self) -> None:
        self._speak()
        touched, self._touched = self._touched, {}
        for message, at in touched.items():
            if self.in_flight.pop(message, None) is not None:  # else it has been settled since
                self.in_flight[message] = at

    def others_changed(self, group: str) -> None:
        """Any number may POP from a queue."""

    def lost(self, error: FrameworkError) -> None:
        self._end(error)

    # --- what comes ----------------------------------------------------------------------------------------

    def _popped(self, count: int, asked: float, early: float, answer: Frame | FrameworkError, at: float) -> None:
        """``early``: until then it waits for messages."""
        self._pops.ended(count)
        if isinstance(answer, Frame):
            self._born.answered(answer.fields, answer.remark, time())
        if isinstance(answer, FrameworkError):
            self._end(answer)
        elif answer.code == Answer.SUCCESS:
            said = handles.Popped(answer.fields, self.node)
            self._unopened.append((said, answer.body, asked, at))
            self._coming += count
            self._pops.rest = said.rest
            self._session.brings(self)
            if not said.rest or self._pops:  # a lone message is handled first; a POP under way is work for the broker
                return
        elif answer.code != Answer.POLLING_TIMEOUT and not self._closed:
            self._refused(answer, at)
        elif at < early:
            self._refusals.note_nothing(at)
        self._confirm()
        self._speak()

    def arrive(self) -> None:
        """All is in flight before the first handler runs, which may block: until then nobody keeps its lease."""
        unopened, self._unopened, self._coming = self._unopened, [], 0
        found: dict[Message, Delivery] = {}
        for said, body, asked, at in unopened:  # all are read before one is taken: what cannot be read ends the session
            self._open(said, body, asked, at, found)
        if self._closed:
            self._give_back(found)
        elif found:
            self._take(found, at)
        else:
            self._refusals.note_nothing(monotonic())
        self._confirm()
        self._speak()

    def _take(self, found: dict[Message, Delivery], at: float) -> None:
        messages = list(found)
        self._deliveries.update(found)
        self.in_flight.update(dict.fromkeys(messages, at))
        self._tally.received += len(messages)
        if self._closing:
            for message in messages:
                self.requeue(message, 0.0)
        else:
            self._receiver.deliver(self, messages)

    def _open(self, said: handles.Popped, body: bytes, asked: float, at: float, found: dict[Message, Delivery]) -> None:
        """Add those whose lease is not over to ``found``: the hub may have been blocked since the broker sent them."""
        began = self._settling.clock.at(said.pop_time, at, asked)
        if monotonic() - began >= self.limits.lease:
            return
        what, tags, dlq, firsts = self.subscription, self._tags, self._options.dlq, dict[tuple[int, int], handles.Handle]()
        queue, topic, like = -1, "", None
        opened = self._opener.opened(body)
        known = said.put_in_place(opened)
        for record, message, about in opened:
            if message is None:  # it comes again when its lease is over
                continue
            if record.queue_id != queue or about is not like or record.topic is not topic:  # one of many, mostly
                queue, topic, like = record.queue_id, record.topic, about
                first = self._handle_like(said, record, about.handle, firsts)
            offset = record.queue_offset
            if tags and about.tags not in tags:  # a broker compares their hashes
                self._session.tell(Request.ACK_MESSAGE, requests.ack(what, first.of(offset)))
                continue
            back = requests.send_back(what, record, requests.DEAD) if dlq else None
            found[message] = Delivery(first, offset, began, at, at, message.id, back)
        if known:
            set_back.note(self._past, self.node, what.topic, opened)

    def _handle_like(
        self, said: handles.Popped, record: Record, written: str, firsts: dict[tuple[int, int], handles.Handle]
    ) -> handles.Handle:
        """Of some message of the same POP and queue as ``record``. ``written``: as its properties have it."""
        what, queue, offset = self.subscription, record.queue_id, record.queue_offset
        if written:
            return said.written(written, queue, offset, again=record.reconsumed > 0)
        kind = handles.NORMAL if record.topic == what.topic else handles.kind_of(record.topic, what.topic, what.group)
        if (kind, queue) not in firsts:
            firsts[kind, queue] = said.handle(kind, queue, offset)
        return firsts[kind, queue]

    def _give_back(self, found: dict[Message, Delivery]) -> None:
        """What came for a connection that has ended, on a session that others still use."""
        for one in found.values():
            fields = requests.change(self.subscription, one.handle, 0)
            self._session.tell(Request.CHANGE_MESSAGE_INVISIBLETIME, fields)

    def _refused(self, answer: Frame, at: float) -> None:
        error = error_of(answer)
        if answer.code in LASTING:
            self._end(error)
            return
        self._refusals.note(error, at)

    # --- settling.Books ------------------------------------------------------------------------------------

    def settled(self, finished: int, requeued: int) -> None:
        self._sent_size -= (finished + requeued) * SIZE
        if not self._closed:
            self._tally.finished += finished
            self._tally.requeued += requeued

    def sending(self, count: int) -> None:
        self._sent_size += count * SIZE

    def refused(self, finished: int, requeued: int, words: str, id: bytes) -> None:
        if self._closed:
            return
        self._tally.finished -= finished
        self._tally.requeued -= requeued
        self._tally.lease_lost += finished + requeued
        self._receiver.lost(self, None, words, settled=id)

    def postponed(self, finished: int, requeued: int) -> None:
        if not self._closed:
            self._tally.finished -= finished
            self._tally.requeued -= requeued

    def answered(self) -> None:
        self._confirm()

    def broken(self, error: FrameworkError) -> None:
        self._end(error)

    # --- leases --------------------------------------------------------------------------------------------

    def forget_lease(self, message: Message) -> None:
        """As the guard asks for."""
        self._deliveries.pop(message).over = True
        self._speak()

    def _look(self) -> None:
        """At leases that are over, at POPs that the broker has refused, and at queues that are others by now."""
        if self._closed or self._session.error is not None:
            return
        self._guard.look()
        if self._refusals.are_over(now := monotonic()):
            self._speak()
        if not (self._draining or self._closing):
            self._back.watch(now, self._end)

    # --- the end -------------------------------------------------------------------------------------------

    def _end(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        for timer in (self._guard, self._deadline, self._soon):
            timer.close()
        self._tally.lease_lost += len(self.in_flight) + self._settling.drop() + self._sent_size // SIZE
        self.in_flight.clear()
        self._deliveries.clear()
        self.granted = self._sent_size = 0
        self._session.leave(self)
        self._ended(self._session)
        self._receiver.closed(self, error)


def _snapshot(some: Iterable[tuple[Message, Delivery]]) -> list[tuple[Message, Delivery]]:
    """Of what the hub may be changing."""
    while True:
        try:
            return list(some)
        except RuntimeError:  # it changed
            continue
