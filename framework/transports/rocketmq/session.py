"""A socket to a server on the hub, shared by all who ask there: answers come out of order, and are handed on by their number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from time import monotonic

from framework.errors import BrokerUnreachable, FrameworkError
from framework.message import Message
from framework.transports.rocketmq import tls
from framework.transports.rocketmq.heartbeat import heartbeat
from framework.transports.rocketmq.outbox import Outbox
from framework.transports.rocketmq.owner import Asked, Owner, Then
from framework.transports.rocketmq.question import Question
from framework.transports.rocketmq.urls import Options, Secrets
from framework.transports.rocketmq.wire import frames, signature
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.shared_session import SharedSession
from framework.transports.stream import Socket

BEAT = 30.0
"""Seconds between two heartbeats: a server closes after 120 in which nothing was said either way, a parked POP or not."""
SHOWN = 0.5
"""Seconds until a heartbeat says who has come."""
QUIET = 5.0
"""Seconds without a word after which a server is asked for one, where somebody subscribes: a PULL may wait there for longer than
a server may be silent."""
_PULSE = 0.5
_NUMBERS = 2**31
_CLEAR = " before it said a word: where it asks for TLS, write rocketmq+tls:// in the broker URL"
"""What may be behind that, where it is spoken to in clear."""


class Session(SharedSession[Frame]):
    """Those who share it are its owners."""

    words = "the connection to RocketMQ at"
    _outbox: Outbox

    def __init__(self, server: str, sock: Socket, options: Options, secrets: Secrets, client: str) -> None:
        super().__init__(server, sock, frames.Decoder().feed, Outbox())
        self._made_at = self.heard_at
        self._options, self._secrets, self.client = options, secrets, client
        self._owners: dict[Owner, None] = {}
        self._of_group: dict[str, dict[Owner, None]] = {}
        self._dirty: dict[Owner, None] = {}
        self._laden: dict[Owner, None] = {}
        self._pending: dict[int, Asked] = {}
        self._soonest = 0.0
        """No answer that is pending is due before, as far as was seen."""
        self._numbers = itertools.count(1)
        self._beaten = self._probed = monotonic()
        self._newcomers: dict[str, None] = {}
        """Groups that no heartbeat has shown."""
        self._soon = self._loop.timer(SHOWN, ref=False)
        self._watchers.append(self._soon)
        self._start_reading()
        self._every(_PULSE, self._check_pulse)
        self._every(BEAT, self.beat)

    # --- whoever asks --------------------------------------------------------------------------------------

    def attach(self, owner: Owner) -> None:
        self._owners[owner] = None
        self._of_group.setdefault(owner.subscription.group, {})[owner] = None
        self._newcomers[owner.subscription.group] = None
        if self.error is None and not self._soon.active:  # a broker takes its time for each group of each
            self._soon.start(self._guarded, self._show)

    def leave(self, owner: Owner) -> None:
        """``owner`` has ended: what is answered to it is passed over."""
        self._owners.pop(owner, None)
        self._dirty.pop(owner, None)
        self._outbox.forget(owner)
        for number in [number for number, asked in self._pending.items() if asked.owner is owner]:
            self._pending.pop(number, None)
        group = owner.subscription.group
        its = self._of_group.get(group, {})
        its.pop(owner, None)
        if not its:
            self._of_group.pop(group, None)
            self.tell(Request.UNREGISTER_CLIENT, {"clientID": self.client, "consumerGroup": group, "producerGroup": group})

    def wants_to_speak(self, owner: Owner) -> None:
        """Collect from it in this turn of the hub."""
        self._dirty[owner] = None
        self.schedule()

    def brings(self, owner: Owner) -> None:
        """What came for it is to ``arrive`` when all of this read has been looked at, and what it asks for next is sent."""
        self._laden[owner] = None

    def put(
        self, owner: object, code: int, fields: dict[str, str], then: Then, *, body: bytes = b"", wait: float = 0.0,
        anywhere: bool = False,
    ) -> int:  # fmt: skip
        """Queue a request for the flush that is under way, or ``schedule``d; returns the number by which ``give_up`` knows it.

        ``wait``: seconds that the server may take on purpose. ``anywhere``: ``then`` may be called in any thread."""
        number = next(self._numbers) % _NUMBERS
        due = monotonic() + wait + self._options.answer_timeout
        self._pending[number] = Asked(owner, then, due, anywhere)
        self._soonest = min(self._soonest, due)
        self._outbox.put(self._encoded(code, fields, body, number))
        return number

    def mark(self, owner: object, then: Callable[[], None]) -> None:
        """``then`` is called on the hub when the socket has taken all that was ``put`` by now."""
        self._outbox.put(b"", owner, then)

    def tell(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        """As ``put``, with an answer that nobody waits for."""
        self.put(None, code, fields, _pass_over, body=body)
        self.schedule()

    def call(self, code: int, fields: dict[str, str], then: Then, *, body: bytes = b"") -> int:
        """As ``put``, from outside of a flush."""
        number = self.put(None, code, fields, then, body=body)
        self.schedule()
        return number

    def give_up(self, number: int) -> None:
        """Pass its answer over."""
        if (asked := self._pending.get(number)) is not None:
            asked.then = _pass_over

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"", timeout: float = 5.0) -> Frame:
        """The answer to a request; blocks its greenlet. Raises BrokerUnreachable, RocketError."""
        return self.question(code, fields, body).wait(timeout)

    def question(self, code: int, fields: dict[str, str], body: bytes = b"") -> Question:
        """As ``ask``, without waiting for the answer. Raises BrokerUnreachable."""
        if self.error is not None:
            raise self.error
        return Question(self, code, fields, body)

    def beat(self) -> None:
        """A heartbeat: it shows who subscribes, and keeps the socket."""
        self._beaten = monotonic()
        self.tell(Request.HEART_BEAT, {}, self.heartbeat)

    def _show(self) -> None:
        """A heartbeat of those who have come: a broker has its work with each group that one names."""
        groups, self._newcomers = self._newcomers, {}
        owners = [owner for group in groups for owner in self._of_group.get(group, ())]
        self.tell(Request.HEART_BEAT, {}, self._said_of(owners))

    @property
    def heartbeat(self) -> bytes:
        """Its body."""
        return self._said_of(self._owners)

    def heartbeat_of(self, group: str) -> bytes:
        """The body of one that leaves other groups as they are."""
        return self._said_of(self._of_group.get(group, ()))

    @property
    def nobody(self) -> bytes:
        """The body of one that leaves all as they are."""
        return heartbeat(self.client, ())

    def _said_of(self, owners: Iterable[Owner]) -> bytes:
        shown = [owner.subscription for owner in owners if owner.shown]
        return heartbeat(self.client, shown, [owner.subscription.group for owner in owners if owner.has_queues])

    @property
    def signs(self) -> bool:
        """Whether requests say who we are."""
        return bool(self._secrets.access_key)

    def _encoded(self, code: int, fields: dict[str, str], body: bytes, number: int) -> bytes:
        if self._secrets.access_key:
            fields = signature.signed(fields, body, self._secrets.access_key, self._secrets.secret)
        return frames.encode(Frame(code, number, fields, body))

    # --- reading -------------------------------------------------------------------------------------------

    def _unusable(self, error: OSError) -> FrameworkError:
        return self._broken(tls.ended_by(error))

    def _hung_up(self) -> FrameworkError:
        silent = self.heard_at == self._made_at and not self._options.tls
        return self._broken("the server closed it" + (_CLEAR if silent else ""))

    def _take(self, events: list[Frame], at: float) -> None:
        for frame in events:
            self._take_one(frame, at)
        if self._laden:
            self._hand_on()

    def _hand_on(self) -> None:
        """Handlers that do not block run meanwhile: a broker that learned only after them what is asked for next had nothing to
        do for as long."""
        if self._dirty:
            self._flush()
            self._flush_due = True  # again, at the end of this turn
        laden, self._laden = self._laden, {}
        for owner in laden:
            owner.arrive()

    def _take_one(self, frame: Frame, at: float) -> None:
        if not frame.is_answer:
            self._asked_of_us(frame)
            return
        if frame.code == Answer.GO_AWAY:
            self.leaving = True
        asked = self._pending.pop(frame.opaque, None)
        if asked is not None:
            asked.then(frame, at)

    def _asked_of_us(self, frame: Frame) -> None:
        """A server tells its clients who has come and gone, and asks after transactions, of which we have none."""
        if frame.code == Request.NOTIFY_CONSUMER_IDS_CHANGED:
            group = frame.fields.get("consumerGroup", "")
            for owner in list(self._of_group.get(group, ())):
                owner.others_changed(group)
        if not frame.is_oneway:
            words = f"request type {frame.code} not supported"
            refused = Frame(Answer.REQUEST_CODE_NOT_SUPPORTED, frame.opaque, flag=frames.RESPONSE, remark=words)
            self._outbox.put(frames.encode(refused))

    def _check_pulse(self) -> None:
        """A hub that was blocked has answers waiting in the socket: read before judging the peer dead."""
        if self.leaving:
            for owner in list(self._owners):
                owner.lost(BrokerUnreachable(f"RocketMQ at {self.server} is about to stop"))
        if self._owners and monotonic() - max(self.heard_at, self._probed) >= QUIET:
            self._probed = monotonic()
            self.tell(Request.HEART_BEAT, {}, self.nobody)
        late = self._overdue()
        if late:
            self._read()
            late = self._overdue() if self.error is None else []
        if late and monotonic() - self.heard_at >= self._options.answer_timeout:
            raise BrokerUnreachable(f"RocketMQ at {self.server} was silent for {self._options.answer_timeout:g} s")
        for number in late:
            self._pending.pop(number).then(BrokerUnreachable(f"RocketMQ at {self.server} does not answer"), monotonic())

    def _overdue(self) -> list[int]:
        """Thousands of PULLs wait at a broker for handlers without messages: all are looked at only where one may be overdue, and
        now and then, because another thread may have added to them meanwhile."""
        now = monotonic()
        if now < self._soonest:
            return []
        pending = list(self._pending.items())
        self._soonest = min([now + QUIET, *(asked.due for _, asked in pending)])
        return [number for number, asked in pending if asked.due <= now]

    # --- sending -------------------------------------------------------------------------------------------

    def _speakers(self) -> dict[Owner, None]:
        return self._dirty

    def _sharers(self) -> dict[Owner, None]:
        return self._owners

    def _send(self) -> None:
        if not self._outbox.full:
            dirty, self._dirty = self._dirty, {}
            for owner in dirty:
                owner.collect()
        self._outbox.send(self._sock)

    # --- in the hub's place, from another native thread ----------------------------------------------------

    def _sift(self, events: list[Frame], now: float) -> list[Frame]:
        """What an answer to a touch says counts at once: the next one needs it."""
        left = []
        for frame in events:
            asked = self._pending.get(frame.opaque) if frame.is_answer else None
            if asked is not None and asked.anywhere:
                del self._pending[frame.opaque]
                asked.then(frame, now)
            else:
                left.append(frame)
        return left

    def _keep(self, now: float, expired: Collection[Message]) -> None:
        for owner in list(self._owners):
            owner.keep(now, expired)
        if now - self._beaten >= BEAT:
            self._beaten = now
            self.put(None, Request.HEART_BEAT, {}, _pass_over, body=self.heartbeat)
        self._outbox.send(self._sock)

    # --- the end -------------------------------------------------------------------------------------------

    def _ended(self, error: FrameworkError) -> None:
        self._outbox.tell()
        for owner in list(self._owners):
            owner.lost(error)
        pending, self._pending = list(self._pending.values()), {}
        for asked in pending:
            asked.then(error, monotonic())
        self._owners.clear()
        self._of_group.clear()


def _pass_over(answer: Frame | FrameworkError, at: float) -> None:
    """Nobody waits for it."""
