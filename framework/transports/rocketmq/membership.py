"""A member of a group that reads by PULL: joins and leaves it, and takes and lets go of queues. Blocks a greenlet of its own.

The members share queues by the same arithmetic over the same lists. They do not learn of a change in the same moment, so a queue
is also locked: whoever had it drains it first. Java's clients do not lock what they read without an order, and go on at the
offset that was committed. Source: RebalanceImpl and RebalanceLockManager of RocketMQ 5.3.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from time import monotonic
from typing import Protocol

import gevent
import msgspec
from gevent.event import Event
from gevent.hub import get_hub

from framework.decoding import prepared
from framework.errors import REFUSALS, BrokerUnreachable, FrameworkError, ProtocolError
from framework.observe import hublog
from framework.transports.rocketmq import requests
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.holes import cross
from framework.transports.rocketmq.question import Question
from framework.transports.rocketmq.queues import Absent, Broken, Past, Pasts, Place, Reading, allocated
from framework.transports.rocketmq.routes import read_json
from framework.transports.rocketmq.sameness import Sameness
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.trail import Trail
from framework.transports.rocketmq.wire.codes import Request
from framework.transports.rocketmq.wire.errors import QueryNotFound, RocketError
from framework.transports.rocketmq.wire.frames import number_in

log = hublog.get(__name__)

BALANCE = 20.0
"""Seconds between two looks at who there is, and which queues: as Java's client. A change is also told by the broker. Its locks
last for 60 s."""
RECENT = 30.0
"""Seconds for which the queues of a topic are not asked for again: as Java's client."""
AGAIN = 0.1
"""Seconds until it is tried again to have a queue that another member drains, or to be known to the broker."""
ROUTED = 1.0
"""Seconds until the retry topic is looked for again, while the name server does not have it yet."""
FAILED = 1.0
HELD = 20.0
"""Seconds in which a member whose connection broke takes only those queues that were its own: the others are dialling as well,
15 s apart at most, and each remembers what it has read. Another could not tell where a queue ceases to be the same. Those of one
that does not come back wait for so long."""
BREAKS = 2
"""So many times HELD, at most, where the connection breaks again before they are over: one that always does so would never take
the queues of one that was killed."""
PATIENCE = 5.0
"""Seconds in which the broker says how far the group is, or notes it down."""
NOBODY = "not exist"
"""In the words of a broker that nobody is connected to as one who may have a lock."""
FIRST = 3.0
"""Seconds that ``connect`` waits for the first queues."""


@prepared
class _Members(msgspec.Struct, rename="camel"):
    consumer_id_list: list[str] = []


class _Queue(msgspec.Struct, rename="camel"):
    topic: str
    broker_name: str
    queue_id: int


@prepared
class _Locked(msgspec.Struct):
    lockOKMQSet: list[_Queue] = []  # noqa: N815 - its name there


class _Holder(msgspec.Struct, rename="camel"):
    client_id: str = ""


@prepared
class _Holders(msgspec.Struct, rename="camel"):
    connection_set: list[_Holder] = []


class Reader(Protocol):
    """The connection. Its ``readings`` are changed by the membership."""

    readings: dict[Place, Reading]

    @property
    def wants_queues(self) -> bool: ...

    def balanced(self) -> None:
        """Its queues may have changed."""

    def lost(self, error: Exception | None) -> None:
        """It is over, with what is in flight. The next connection looks first where each queue goes on."""

    def let_go(self, reading: Reading) -> bool:
        """Whether nothing of ``reading`` is in flight any more, or is to be waited for."""


class Membership:
    """Of one connection, at one broker. ``places(topic)``: all queues of a topic, on all brokers; blocks, and may raise.
    ``pasts``: what the groups remember here."""

    def __init__(
        self, session: Session, node: str, what: Subscription, places: Callable[[str], Collection[Place]], reader: Reader,
        *, pasts: Pasts,
    ) -> None:  # fmt: skip
        self._session, self._node, self._what, self._places, self._reader = session, node, what, places, reader
        self._past = pasts.setdefault(what.group, Past())
        broken, now = self._past.broke.pop(node, None), monotonic()
        self._alone_since = now if broken is None or broken.since is None else broken.since
        self._alone_until = -math.inf if broken is None else min(now + HELD, self._alone_since + BREAKS * HELD)
        self._ours = set(broken.ours) if broken is not None else set()
        self._absent = self._past.absent.setdefault(node, Absent())
        self._sameness = Sameness(session, node, what, self._past, self._ours)
        self._joined = False
        self.has_queues = False
        """It is known as one that may hold a queue."""
        self._renewed = -math.inf
        self._known: dict[str, Collection[Place]] = {}
        self._asked: dict[str, float] = {}
        self._changed = Event()
        self._first = Event()
        self.rejected: FrameworkError | None = None
        """How its broker rejects it: it has no right to read, perhaps."""
        self._greenlet = gevent.spawn(self._run)

    def look(self) -> None:
        """Something has changed."""
        self._changed.set()

    def await_first(self, timeout: float = FIRST) -> None:
        """Until its first look is over, with whatever result."""
        self._first.wait(timeout)

    def stop(self, *, broke: bool) -> None:
        """``broke``: the connection did, and what it had stays ours if it is soon back."""
        self._greenlet.kill(block=False)
        for reading in self._reader.readings.values():
            reading.ended()
        if broke and (self._is_alone or self._known):  # it was a member
            ours, since = (self._ours, self._alone_since) if self._is_alone else (set(), None)
            self._past.broke[self._node] = Broken(frozenset(ours | self._reader.readings.keys()), since)

    def _run(self) -> None:
        while self._session.error is None:
            self._changed.clear()
            try:
                pause = self._look()
            except FrameworkError as error:
                log.debug("%s on %s: %s", self._what.group, self._node, error)
                self.rejected = error if isinstance(error, REFUSALS) else None
                pause = FAILED
            self._first.set()
            self._reader.balanced()
            self._changed.wait(pause)

    def _look(self) -> float:
        """Seconds until the next look, at most."""
        wanted, pause = self._wanted() if self._reader.wants_queues else (self._left(), BALANCE)
        readings = self._reader.readings
        for place, reading in readings.items():
            reading.leaving = place not in wanted
        self._let_go([reading for reading in readings.values() if reading.leaving])
        self._reader.balanced()
        self._sameness.look_back(wanted)
        missing = [place for place in wanted if place not in readings]
        self._unlock_for_absent()
        for place, offset in self._offsets(self._taken(missing)):
            trail = self._past.trails.setdefault(place, Trail())
            reading = Reading(place, offset, trail, astray=self._sameness.is_cut)
            if not reading.astray:
                self._sameness.begin(reading)
            readings[place] = reading
        for reading in [reading for reading in readings.values() if reading.astray]:
            self._sameness.find(reading)
        for reading in [reading for reading in readings.values() if reading.hole]:
            cross(self._session, self._what, reading)
        self._renew()
        if self.has_queues and not (self._joined or readings):
            self.has_queues = False
            self._unregister("producerGroup")
        if self._sameness.is_lost(readings.values()):
            error = BrokerUnreachable(f"RocketMQ {self._node} has lost what was read from {self._what.topic} there")
            get_hub().loop.run_callback(self._reader.lost, error)
        if any(reading.astray or reading.hole for reading in readings.values()):
            pause = min(pause, FAILED)
        return min(pause, AGAIN) if any(place not in readings for place in wanted) else pause

    # --- who reads what ------------------------------------------------------------------------------------

    def _wanted(self) -> tuple[list[Place], float]:
        """The queues of this broker that are ours, and when to look again."""
        if not self._joined:
            self._session.ask(Request.HEART_BEAT, {}, self._session.heartbeat_of(self._what.group))
            self._joined = self.has_queues = True
        members = self._members()
        if self._session.client not in members:
            self._joined = False
            return list(self._reader.readings), AGAIN
        self._absent.note(members, now := monotonic())
        found: list[Place] = []
        for topic in (self._what.topic, self._what.retry_topic):
            found += allocated(self._places_of(topic), members, self._session.client)
        pause = BALANCE if self._known[self._what.retry_topic] else ROUTED
        pause = min(pause, max(AGAIN, self._absent.first + HELD - now))
        found = [place for place in found if place.broker == self._node]
        if self._is_alone:
            found = [place for place in found if place in self._ours]
            pause = min(pause, max(0.0, self._alone_until - monotonic()))
        return found, pause

    @property
    def _is_alone(self) -> bool:
        """It takes only what was its own."""
        return monotonic() < self._alone_until

    def _members(self) -> list[str]:
        try:
            answer = self._session.ask(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self._what.group})
        except RocketError:  # it has none
            return []
        return read_json(answer, _Members).consumer_id_list

    def _places_of(self, topic: str) -> Collection[Place]:
        now = monotonic()
        if self._known.get(topic) and now - self._asked[topic] < RECENT:
            return self._known[topic]
        try:
            self._known[topic] = self._places(topic)
            self._asked[topic] = now
        except FrameworkError:
            if topic not in self._known:
                raise
        return self._known[topic]

    def _left(self) -> list[Place]:
        """It wants none: others may have them."""
        if self._joined:
            self._joined = False
            self._unregister("consumerGroup")
        return []

    def _unregister(self, what: str) -> None:
        self._session.tell(Request.UNREGISTER_CLIENT, {"clientID": self._session.client, what: self._what.group})

    # --- whose turn it is ----------------------------------------------------------------------------------

    def _taken(self, places: Collection[Place]) -> Collection[Place]:
        """Those of ``places`` that nobody has."""
        if not places:
            return places
        ours = self._lock(places)
        if not self._reader.readings:
            self._renewed = monotonic()
        if len(ours) < len(places) and not self._others_hold():
            return places
        return [place for place in places if place in ours]

    def _lock(self, places: Iterable[Place]) -> set[Place]:
        answer = self._session.ask(Request.LOCK_BATCH_MQ, {}, self._lock_body(places))
        found = read_json(answer, _Locked).lockOKMQSet
        return {Place(one.topic, one.broker_name, one.queue_id) for one in found}

    def _lock_body(self, places: Iterable[Place], client: str = "") -> bytes:
        """``client``: whose locks they are; ours unless said."""
        queues, client = [place.as_json() for place in places], client or self._session.client
        return msgspec.json.encode({"consumerGroup": self._what.group, "clientId": client, "mqSet": queues})

    def _others_hold(self) -> bool:
        """Whether a lock can be that of a living member. The lock of one that was killed lasts for up to a minute."""
        holders = self._holders()
        return holders is None or any(one != self._session.client for one in holders)

    def _holders(self) -> list[str] | None:
        """Those who may have a lock, and are connected. None: it cannot be told."""
        try:
            answer = self._session.ask(Request.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": self._what.group})
        except RocketError as error:
            return [] if NOBODY in str(error) else None
        return [one.client_id for one in read_json(answer, _Holders).connection_set]

    def _unlock_for_absent(self) -> None:
        """One that was killed cannot. Whoever has seen it does, also for others: they may not have. Until then it may be back."""
        now = monotonic()
        if not (absent := self._absent.before(now - HELD)):
            return
        if (holders := self._holders()) is None:
            return
        places = [place for known in self._known.values() for place in known if place.broker == self._node]
        for client in absent:
            if client in holders:  # it lets go of what it had
                self._absent.again(client, now)
            else:
                self._session.tell(Request.UNLOCK_BATCH_MQ, {}, self._lock_body(places, client))
                self._absent.forget(client)

    def _renew(self) -> None:
        now = monotonic()
        if now - self._renewed >= BALANCE and self._reader.readings:
            self._renewed = now
            self._session.tell(Request.LOCK_BATCH_MQ, {}, self._lock_body(self._reader.readings))  # what is ours stays ours

    def _let_go(self, leaving: Iterable[Reading]) -> None:
        """Of those that are drained: their offsets are committed before others can have them."""
        gone = [reading for reading in leaving if self._reader.let_go(reading)]
        try:
            for reading in gone:
                reading.telling = True  # nobody else tells the broker of it meanwhile
            for question in [self._committed(reading) for reading in gone if reading.mark != reading.told or not reading.mark]:
                question.wait(PATIENCE)
            if gone:
                self._session.ask(Request.UNLOCK_BATCH_MQ, {}, self._lock_body(reading.place for reading in gone))
        finally:
            for reading in gone:
                reading.telling = False
        for reading in gone:
            reading.ended()
            self._ours.discard(reading.place)
            del self._reader.readings[reading.place]

    def _committed(self, reading: Reading) -> Question:
        return self._session.question(Request.UPDATE_CONSUMER_OFFSET, requests.commit(self._what, reading.place, reading.mark))

    def _offsets(self, places: Iterable[Place]) -> Iterator[tuple[Place, int]]:
        """Where the group goes on in each, all asked at once."""
        code, more = Request.QUERY_CONSUMER_OFFSET, {"setZeroIfNotFound": "false"}
        asked = [(place, self._session.question(code, requests.queue(self._what, place) | more)) for place in places]
        for place, question in asked:
            yield place, self._offset(place, question)

    def _offset(self, place: Place, question: Question) -> int:
        """0, and so the first message that there is, where it has never read."""
        try:
            answer = question.wait(PATIENCE)
        except QueryNotFound:
            return 0
        offset = number_in(answer.fields, "offset")
        if offset is None:
            raise ProtocolError(f"RocketMQ {self._node} names no offset of {place.topic}: {dict(answer.fields)!r:.200}")
        return offset
