"""One subscription of one handler to one broker, by PULL, on a session that it shares: reads the queues that are its own.

Nothing is leased. What is pulled is ours until its queue is another member's, and the offset of a queue is committed up to the
first message that is not settled. A PULL moves nothing at its broker: what comes too late for the grant is passed over, and
pulled again. Source: PullMessageProcessor and SendMessageProcessor of RocketMQ 5.3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from time import monotonic

from gevent import monkey
from gevent.hub import get_hub

from framework.errors import AlreadySettled, BrokerUnreachable, FrameworkError
from framework.message import Message
from framework.observe import hublog
from framework.transports.contract import Limits, Receiver
from framework.transports.rocketmq import requests
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.holes import leap, until_hole
from framework.transports.rocketmq.membership import Membership
from framework.transports.rocketmq.opening import Opener
from framework.transports.rocketmq.owner import Unleased
from framework.transports.rocketmq.pulled import SIZE, SOONEST, UNREADABLE, Pulled, following, level_of, offset_in, placed
from framework.transports.rocketmq.queues import PAUSED, Pasts, Place, Reading
from framework.transports.rocketmq.refusals import Refusals
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.urls import Options
from framework.transports.rocketmq.wire.codes import LASTING, PULLED, Answer, Request
from framework.transports.rocketmq.wire.errors import error_of
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.rocketmq.wire.stored import Record

log = hublog.get(__name__)
_get_ident = monkey.get_original("_thread", "get_ident")

CLOSE_FLUSH, LOOK = 1.0, 0.25


class PullConnection(Unleased):
    """``contract.Connection`` by PULL. Made on the hub that it will live on."""

    lasting_ids = False
    _session: Session

    def __init__(
        self, session: Session, names: tuple[str, str, str], what: Subscription, receiver: Receiver, *, limits: Limits,
        options: Options, ended: Callable[[Session], None], places: Callable[[str], Collection[Place]], pasts: Pasts,
    ) -> None:  # fmt: skip
        """As ``PopConnection``. ``places(topic)``: all queues of a topic; blocks. ``pasts``: as ``Membership`` has them."""
        self.node, self.topic, self.channel = names
        self.subscription = what
        self.limits, self.granted = limits, 0
        self.in_flight, self.readings = dict[Message, float](), dict[Place, Reading]()
        self._session, self._options, self._receiver, self._ended = session, options, receiver, ended
        self._tally, self._thread = receiver.tally, _get_ident()
        self._pulled, self._opener, self._tags = dict[Message, tuple[Reading, Record]](), Opener(self), what.tag_set
        self._finished = self._sending = 0
        """Settlements to be counted: not collected yet, and not taken by the socket yet."""
        self._coming, self._unopened = 0, list[tuple[Reading, Frame, float]]()
        """Messages that may be in what came, which is opened once what follows has been asked for: a broker has work then."""
        self._back, self._sent_back = list[Pulled](), dict[Pulled, None]()
        """What was sent back, and is counted, and not answered for."""
        self._refusals, self._idle_since = Refusals(self, "PULL"), monotonic()
        self._opened = self._draining = self._drained = self._closing = self._closed = self._spoken = False
        self._timer, self._deadline = get_hub().loop.timer(LOOK, LOOK), get_hub().loop.timer(CLOSE_FLUSH)
        self._watch()
        self._member = Membership(session, self.node, what, places, self, pasts=pasts)
        session.attach(self)
        self._member.await_first()
        self._opened, self._idle_since = True, monotonic()
        if (error := session.error or self._member.rejected) is not None:
            self._stop()
            session.leave(self)
            raise error

    @property
    def exposed(self) -> int:
        return 0 if self._closed else max(self.granted, len(self.in_flight))

    # --- what the engine says ------------------------------------------------------------------------------

    def grant(self, n: int) -> None:
        n = min(n, self.limits.max_grant)
        if n != self.granted and not (self._draining or self._closing or self._closed):
            asleep = not self.shown
            if not n:
                self._idle_since = monotonic()
                self._watch()
            self.granted = n
            if asleep:
                self._member.look()
            self._speak()

    def finish(self, message: Message) -> None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        reading, record = self._pulled.pop(message)
        reading.unsettled.pop(offset := record.queue_offset, None)  # as ``settled``, in one place: most messages end here
        if offset > reading.last_settled:  # noqa: PLR1730 - as there
            reading.last_settled = offset
        self._finished += 1
        if reading.leaving or not self._spoken:
            self._settled(reading)

    def requeue(self, message: Message, delay: float) -> None:
        self._send_back(self._taken(message), level_of(delay))

    def terminate(self, message: Message) -> None:
        if not self._options.dlq:
            self.finish(message)
            return
        one = self._taken(message)
        one.dead = True
        self._send_back(one, requests.DEAD)

    def _taken(self, message: Message) -> Pulled:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled.of(message.id)
        return Pulled(*self._pulled.pop(message), message.id)

    def _send_back(self, one: Pulled, level: int) -> None:
        one.level = level
        one.reading.sent_back += 1
        self._back.append(one)
        self._speak()

    def _settled(self, reading: Reading) -> None:
        if reading.leaving and reading.idle:
            self._member.look()
        self._speak()

    def drain(self) -> None:
        self._draining, self.granted = True, 0
        self._watch()
        self._member.look()
        self._speak()

    def unsent(self) -> int:
        return (self._finished + self._sending + len(self._back)) * SIZE

    def close(self) -> None:
        """What is in flight stays at its offset, and comes again from there; where something behind it is settled it is sent
        back, or that would come again as well."""
        if self._closing or self._closed:
            return
        self._closing, self.granted = True, 0
        for message in list(self.in_flight):
            reading, record = self._pulled[message]
            if reading.would_repeat(record.queue_offset):
                self._send_back(self._taken(message), SOONEST)
        self._deadline.start(self._end, None)
        self._watch()
        self._member.look()
        self._speak()

    def _speak(self) -> None:
        if not (self._spoken or self._closed) and _get_ident() == self._thread:
            self._spoken = True
            self._session.wants_to_speak(self)

    # --- membership.Reader ---------------------------------------------------------------------------------

    @property
    def wants_queues(self) -> bool:
        """Not while it is granted nothing: then others have room. Before it is in use, nothing can be granted."""
        ends = self._draining or self._closing or self._closed
        return not ends and (self.granted > 0 or not self._opened or monotonic() - self._idle_since < PAUSED)

    shown = wants_queues

    @property
    def has_queues(self) -> bool:
        return self._member.has_queues

    def balanced(self) -> None:
        if self._closing and not self.readings and not self.unsent():
            get_hub().loop.run_callback(self._end, None)
        self._speak()

    def let_go(self, reading: Reading) -> bool:
        return not (reading.telling or reading.sent_back) and (reading.idle or self._closing)

    # --- session.Owner -------------------------------------------------------------------------------------

    def turn(self) -> None:
        if (self._finished or self._back) and not self._closed:
            self._receiver.settled(self)
        if self._draining and not (self._drained or self._closed):  # what comes of a PULL from now on is passed over
            self._drained = True
            self._receiver.drained(self)

    def collect(self) -> None:
        self._spoken = False
        if self._closed:
            return
        if not self._session.leaving:
            self._pull()
        self._say_settled()

    def _say_settled(self) -> None:
        back, self._back = self._back, []
        for one in back:
            fields, then = requests.send_back(self.subscription, one.record, one.level), partial(self._taken_back, one)
            self._session.put(self, Request.CONSUMER_SEND_MSG_BACK, fields, then)
        for reading in self.readings.values():
            if not reading.telling and (mark := reading.mark) != reading.told:
                reading.telling = True
                fields = requests.commit(self.subscription, reading.place, mark)
                self._session.put(self, Request.UPDATE_CONSUMER_OFFSET, fields, partial(self._told, reading, mark))
        finished, self._finished = self._finished, 0
        counted = [one for one in back if one.counted]
        if finished or counted:
            self._sending += finished + len(counted)
            self._session.mark(self, partial(self._left, finished, counted))

    def _left(self, finished: int, back: list[Pulled]) -> None:  # the socket has them
        self._sending -= finished + len(back)
        dead = sum(one.dead for one in back)
        self._tally.finished += finished + dead
        self._tally.requeued += len(back) - dead
        self._sent_back.update((one, None) for one in back if not one.answered)

    def _told(self, reading: Reading, mark: int, answer: Frame | FrameworkError, at: float) -> None:
        reading.telling = False
        if not self._failed(answer):
            reading.told = mark
            self._settled(reading)

    def _taken_back(self, one: Pulled, answer: Frame | FrameworkError, at: float) -> None:
        """Only then it may be passed by: until its broker says so it is where it was. What is dead is stored as ours already."""
        if one.dead and isinstance(answer, Frame) and answer.code != Answer.SUCCESS:
            log.warning("%s/%s: %s did not put %s into %%DLQ%%: %s", self.topic, self.channel, self.node, one.id.decode(),
                        error_of(answer))  # fmt: skip
        elif self._failed(answer):
            return
        one.answered = True
        self._sent_back.pop(one, None)
        one.reading.sent_back -= 1
        one.reading.settled(one.record.queue_offset)
        self._settled(one.reading)

    def _failed(self, answer: Frame | FrameworkError) -> bool:
        """A settlement that is not taken ends the connection: all that is not committed comes again."""
        if isinstance(answer, Frame) and answer.code == Answer.SUCCESS:
            return False
        self._end(error_of(answer) if isinstance(answer, Frame) else answer)
        return True

    # --- what comes ----------------------------------------------------------------------------------------

    def _pull(self) -> None:
        """Where it is answered at once, it commits as well: a request for that alone was half of what the broker had to do."""
        room, wait = self.granted - len(self.in_flight) - self._coming, requests.PARKED + requests.CHECKED
        for reading in self.readings.values():
            if not reading.asking and (count := min(requests.MOST, room, reading.room)) > 0:
                reading.asking, reading.asked_at = True, monotonic()
                done = reading.mark if reading.more and not reading.telling else None
                reading.telling = reading.telling or done is not None
                fields = requests.pull(self.subscription, reading.place, reading.ahead, count, done=done)
                then = partial(self._answered, reading, (reading.ahead, count, done))
                self._session.put(self, Request.PULL_MESSAGE, fields, then, wait=wait)

    def _answered(self, reading: Reading, asked: tuple[int, int, int | None], answer: Frame | FrameworkError, at: float) -> None:
        """``asked``: from where on, how many, and as far as it committed. What begins behind ``next`` leaves some out."""
        start, count, done = asked
        reading.asking = reading.more = False
        if self._closed:
            return
        if done is not None:
            reading.telling = False
            if isinstance(answer, Frame) and answer.code in PULLED:
                reading.told = done
                self._settled(reading)
        if isinstance(answer, FrameworkError):
            self._end(answer)
        elif start != reading.next or reading.leaving or self._draining or self._closing:
            pass
        elif answer.code == Answer.SUCCESS:
            reading.comes(offset_in(answer.fields, "nextBeginOffset", 0), offset_in(answer.fields, "maxOffset", 0))
            self._unopened.append((reading, answer, at))
            self._coming += count
            self._session.brings(self)
        elif answer.code in (Answer.PULL_RETRY_IMMEDIATELY, Answer.PULL_OFFSET_MOVED):
            reading.hole = leap(answer, start)
            if not (reading.hole or reading.moved(following(answer.fields, reading.next))):
                self._end(BrokerUnreachable(f"RocketMQ {self.node} has lost what was read from {reading.place.topic} there"))
            elif reading.astray or reading.hole:
                self._member.look()
            elif reading.next <= start:
                self._brought_nothing(reading, at)
        elif answer.code != Answer.PULL_NOT_FOUND:
            self._refused(reading, answer, at)
        elif at - reading.asked_at < requests.EARLY:
            self._brought_nothing(reading, at)
        self._speak()

    def arrive(self) -> None:
        unopened, self._unopened, self._coming, batch = self._unopened, [], 0, list[Message]()
        for reading, answer, at in unopened:
            if not (self._closed or self._closing or self._draining):
                self._take(reading, answer, at, batch)
            reading.opened()
            if reading.hole:
                self._member.look()
        self._speak()
        if batch:
            self._receiver.deliver(self, batch)

    def _take(self, reading: Reading, answer: Frame, at: float, batch: list[Message]) -> None:
        """Without tags ``nextBeginOffset`` is behind the last of them: what an answer leaves out is asked for again."""
        tags, before = self._tags if reading.place.topic != self.subscription.retry_topic else None, len(batch)
        found, known, end = placed(self._opener.opened(answer.body), answer, reading.next)
        if found[-1][0].queue_offset < reading.next:
            self._brought_nothing(reading, at)
        elif not tags:
            found = until_hole(reading, found, end)
        in_flight, pulled, unsettled, room = self.in_flight, self._pulled, reading.unsettled, self.granted - len(self.in_flight)
        for record, message, about in found:
            if room <= 0:
                break
            if (offset := record.queue_offset) < reading.next:
                continue
            reading.next = offset + 1
            if tags and about.tags not in tags:  # a broker compares their hashes
                continue
            unsettled[offset] = None
            if message is None:
                self._send_back(Pulled(reading, record, record.message_id.encode(), counted=False), UNREADABLE)
                continue
            pulled[message] = reading, record
            in_flight[message] = at
            batch.append(message)
            room -= 1
        else:
            reading.next = max(reading.next, end if tags or not known else 0)
        new = batch[before:]
        reading.trail.note([(pulled[one][1].queue_offset, one.id, one.timestamp) for one in new[:1] + new[-1:] if known])
        self._tally.received += len(new)  # here, because the next answer may be one that cannot be opened

    def _refused(self, reading: Reading, answer: Frame, at: float) -> None:  # the others are read on
        if answer.code in LASTING:
            self._end(error_of(answer))
        else:
            self._refusals.note(error_of(answer), at)
            self._brought_nothing(reading, at)

    def _brought_nothing(self, reading: Reading, at: float) -> None:
        reading.refused = True
        self._refusals.note_nothing(at)
        self._watch()

    # --- meanwhile -----------------------------------------------------------------------------------------

    def others_changed(self, group: str) -> None:
        if group == self.subscription.group:
            self._member.look()

    def _watch(self) -> None:
        """Look as often as LOOK says, until there is nothing to wait for."""
        if not (self._timer.active or self._closed):
            self._timer.start(self._look)

    def _look(self) -> None:
        if self._session.error is not None:
            return
        if not self.wants_queues and self.readings:
            self._member.look()
        elif self._refusals.are_over(monotonic()):
            for reading in self.readings.values():
                reading.refused = False
            self._speak()
        if self.granted and not self._refusals.until:
            self._timer.stop()

    def _stop(self, *, broke: bool = True) -> None:
        self._closed = True
        for timer in (self._timer, self._deadline):
            timer.close()
        self._member.stop(broke=broke)

    def _end(self, error: Exception | None) -> None:
        if self._closed or not self._opened:
            return
        self._stop(broke=error is not None)
        self._tally.finished -= (dead := sum(one.dead for one in self._sent_back))
        self._tally.requeued -= len(self._sent_back) - dead
        waits = self._finished + self._sending + len(self._sent_back) + sum(one.counted for one in self._back)
        self._tally.lease_lost += len(self.in_flight) + waits
        for kept in (self.in_flight, self._pulled, self._unopened, self._back, self._sent_back, self.readings):
            kept.clear()
        self.granted = self._finished = self._sending = 0
        self._session.leave(self)
        self._ended(self._session)
        self._receiver.closed(self, error)

    lost = _end
