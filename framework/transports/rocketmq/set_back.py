"""Where a group that reads by POP goes on at a broker that lost the end of its log. The broker keeps how far the group is, and
goes on there: what has come since at the offsets that were lost, it would pass over.

So a worker that has read a queue looks, before its first POP on a new connection, whether that is still there, and while it reads
on, for a topic that is made anew shows by nothing else. Of what it has not read it looks whether its broker has as much as the
group has read. Source: PopMessageProcessor.getPopOffset and AdminBrokerProcessor.resetOffset of RocketMQ 5.3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from time import monotonic

import gevent

from framework.errors import BrokerUnreachable, FrameworkError
from framework.message import Message
from framework.observe import hublog
from framework.transports.rocketmq import requests
from framework.transports.rocketmq.administration import popped
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.holes import NOWHERE, STEP, first_readable
from framework.transports.rocketmq.pulled import following, offset_in
from framework.transports.rocketmq.question import Question
from framework.transports.rocketmq.queues import Past, Place
from framework.transports.rocketmq.sameness import PATIENCE, Sameness, one_of
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.trail import Found, Trail, behind, same_in
from framework.transports.rocketmq.wire.codes import PULLED, Answer, Request
from framework.transports.rocketmq.wire.errors import NoPermission, RocketError
from framework.transports.rocketmq.wire.stored import Record

log = hublog.get(__name__)

EVERY = 30.0
"""Seconds between two looks while it reads: a request for each queue."""
SEARCH = 20.0
"""Seconds for which one look asks for the first place of each queue that can be read: about a million of them."""


def note(past: Past, node: str, topic: str, came: Sequence[tuple[Record, Message | None, object]]) -> None:
    """``came``: what an answer to a POP brought, by where it lies. Remembered is the first and the last one of each queue."""
    ends = came if len(came) < 3 or came[0][0].queue_id != came[-1][0].queue_id else (came[0], came[-1])
    if any(record.reconsumed or record.queue_id != ends[0][0].queue_id for record, _, _ in ends):
        ends = came
    found: dict[int, list[tuple[int, bytes, int]]] = {}
    for record, message, _ in ends:
        if message is not None and record.topic == topic and not record.reconsumed:  # what comes again lies elsewhere
            found.setdefault(record.queue_id, []).append((record.queue_offset, message.id, message.timestamp))
    for queue, taken in found.items():
        trail = past.trails.setdefault(Place(topic, node, queue), Trail())
        if taken[-1][0] > trail.last:  # answers to POPs may come in any order
            trail.note((taken[0], taken[-1]))


class SetBack(Sameness):
    """Of the queues of one topic, at one broker."""

    def __init__(
        self, session: Session, node: str, what: Subscription, past: Past, places: Callable[[str], Collection[Place]]
    ) -> None:
        """``places``: all queues of a topic."""
        super().__init__(session, node, what, past, ())
        self._looks = what._replace(group=requests.LOOKS)
        self._places = places
        self._until = 0.0
        """For so long it looks for places that can be read, in seconds of ``monotonic``."""
        self._looking: gevent.Greenlet | None = None
        self._popped: dict[int, int] | None = None
        """Of the broker in KV mode, once it was asked: queue -> where its POPs go on."""

    def _ask(self, place: Place, at: int) -> Question:
        return self._session.question(Request.PULL_MESSAGE, requests.look(self._looks, place, at))

    def look(self) -> None:
        """Set the group back where that must be. A broker that does not say what it has holds up no POP. Blocks a greenlet of its
        caller's. Raises FrameworkError where the session has ended."""
        self._until = monotonic() + SEARCH
        try:
            self._look_at_all(read := self._read())
            self._look_at_others({place for place, _ in read})
        except BrokerUnreachable as error:
            if self._session.error is not None:
                raise
            self._tell(self._what.topic, error)

    def watch(self, now: float, lost: Callable[[FrameworkError], None]) -> None:
        """Called again and again while it reads: ``lost`` is where a queue is another by now, for the next connection to look."""
        if now - self._looked < EVERY or self._looking:
            return
        self._looked = now

        def look() -> None:
            try:
                if self._is_another():
                    lost(BrokerUnreachable(f"RocketMQ {self._node} has lost what was read from {self._what.topic} there"))
            except FrameworkError as error:
                log.debug("%s on %s: %s", self._what.group, self._node, error)
            finally:
                self._looking = None

        self._looking = gevent.spawn(look)

    def _read(self) -> list[tuple[Place, Trail]]:
        return [
            (place, trail)
            for place, trail in self._past.trails.items()
            if place.broker == self._node and place.topic == self._what.topic and trail.points
        ]

    def _is_another(self) -> bool:
        """Whether a queue is not the one any more that was read. All are asked for, also where nothing comes: of another one its
        broker may pass over all that there is. Raises FrameworkError."""
        points = [(trail, trail.last if trail.witness is None else trail.witness, place) for place, trail in self._read()]
        asked = [(trail, at, trail.last, self._ask(place, at)) for trail, at, place in points]
        another = False
        for trail, at, last, question in asked:
            one, answer = one_of(question, at)
            if at not in trail.points or answer.remark == NOWHERE:  # more has come; it is so old that it is just being removed
                continue
            if self._found(trail, at, one, answer)[0] is Found.OTHER:
                another = True
            else:
                trail.is_sure_of(last)
        return another

    def _look_at_all(self, read: Sequence[tuple[Place, Trail]]) -> None:
        points = [(place, trail, at) for place, trail in read for at in {trail.witness, trail.last} if at is not None]
        asked = [(place, trail, at, self._ask(place, at)) for place, trail, at in points]
        others, kept = dict[Place, tuple[Trail, int]](), dict[Place, tuple[Trail, int]]()
        for place, trail, at, question in asked:
            try:
                what, end = self._found_by(question, trail, at)
                (others if what is Found.OTHER else kept)[place] = trail, end
            except NoPermission as error:  # to look; all others are refused as well
                self._tell(f"{place.topic}, which is looked at as group {requests.LOOKS},", error)
                return
            except RocketError as error:
                self._tell(f"queue {place.number} of {place.topic}", error)
        for place, (trail, end) in others.items():
            try:
                self._go_back(place, self._same(place, trail), end)
            except RocketError as error:
                self._tell(f"queue {place.number} of {place.topic}", error)
        for place in kept.keys() - others.keys():
            trail, end = kept[place]
            try:
                trail.is_sure_of(trail.last)
                self._look_where_others_read(place, trail, end)
            except RocketError as error:
                self._tell(f"queue {place.number} of {place.topic}", error)

    def _look_at_others(self, read: Collection[Place]) -> None:
        """Queues of which nothing was ``read`` here: whether they have what their group has read."""
        places = [place for place in self._places(self._what.topic) if place.broker == self._node and place not in read]
        asked = [(place, self._question_of_offset(place)) for place in places]
        for place, question in asked:
            try:
                offset, deleted = self._goes_on(place, question)
                if offset <= 0:
                    continue
                fields = self._ask(place, offset).wait(PATIENCE, also=PULLED).fields
                if deleted or following(fields, offset) == 0:
                    self._go_back(place, 0, offset_in(fields, "maxOffset", 0))
            except RocketError as error:
                self._tell(f"queue {place.number} of {place.topic}", error)
                return

    def _same(self, place: Place, trail: Trail) -> int:
        """The offset behind the last message that is still the one that was read; the others are forgotten."""
        in_log: dict[int, int] = {}
        trail.keep(same_in(trail, lambda at: self._look_at(place, trail, at, in_log)[0]))
        if (kept := in_log.get(trail.last)) is not None:
            self._note_cut(kept)
        return trail.last + 1

    def _look_where_others_read(self, place: Place, trail: Trail, end: int) -> None:
        """All that was read here is there. Others may have read on, and that be lost."""
        if end < (offset := self._offset(place)):
            self._go_back(place, trail.last + 1, end)
        elif self._kept >= 0 and offset > trail.last + 1:
            self._go_back(place, behind(self._kept, offset, lambda at: self._in_log(place, at)), end)

    def _go_back(self, place: Place, found: int, end: int) -> None:
        """``end``: of the queue."""
        if (offset := self._offset(place)) <= found:
            return
        if end > found:  # from a place that it cannot read a broker passes over more
            found = self._first_readable(place, found, min(end, offset))
        if offset <= found:
            return
        words = "%s: queue %d of %s was read up to %d there, and is another from %d on: it has lost messages, or was made anew"
        log.warning(words, self._node, place.number, place.topic, offset, found)
        fields = {"topic": place.topic, "group": self._what.group, "queueId": str(place.number), "offset": str(found)}
        try:
            self._session.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, fields | {"timestamp": "-1", "isForce": "true"})
        except RocketError as error:  # who may read may commit, and not administer
            log.debug("%s: %s", self._node, error)
            self._session.ask(Request.UPDATE_CONSUMER_OFFSET, requests.commit(self._what, place, found))

    def _first_readable(self, place: Place, start: int, end: int) -> int:
        """``start`` where that is not found in time: a broker may name an end that no queue has."""
        found = start
        while found < end and monotonic() < self._until:
            step = min(end, found + STEP)
            if (found := first_readable(self._session, self._looks, place, found, step)) < step or step == end:
                return found
        return start

    def _offset(self, place: Place) -> int:
        """As its broker has it; 0 where there is none. Raises FrameworkError."""
        return self._goes_on(place, self._question_of_offset(place))[0]

    def _goes_on(self, place: Place, question: Question) -> tuple[int, bool]:
        """Where the group goes on, and whether that is of a queue that was deleted: in KV mode a broker forgets then what it says
        where it is asked for an offset, and not what its POPs go by. Raises FrameworkError."""
        answer = question.wait(PATIENCE, also=(Answer.QUERY_NOT_FOUND,))
        if answer.code != Answer.QUERY_NOT_FOUND:
            return offset_in(answer.fields, "offset", 0), False
        if self._popped is None:
            self._popped = {}
            with suppress(RocketError):  # it does not know the group
                self._popped = popped(self._session, self._what.topic, self._what.group)
        offset = self._popped.get(place.number, 0)
        return offset, offset > 0

    def _question_of_offset(self, place: Place) -> Question:
        fields = requests.queue(self._what, place) | {"setZeroIfNotFound": "false"}
        return self._session.question(Request.QUERY_CONSUMER_OFFSET, fields)

    def _tell(self, what: str, error: FrameworkError) -> None:
        log.warning("%s: whether %s is still what was read is not known: %s", self._node, what, error)
