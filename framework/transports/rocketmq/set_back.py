"""Where a group that reads by POP goes on at a broker that lost the end of its log. The broker keeps how far the group is, and
goes on there: what has come since at the offsets that were lost, it would pass over.

So a worker that has read a queue looks, before its first POP on a new connection, whether that is still there. Blocks a greenlet
of its caller's. Source: PopMessageProcessor.getPopOffset and AdminBrokerProcessor.resetOffset of RocketMQ 5.3.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from framework.errors import BrokerUnreachable, FrameworkError
from framework.message import Message
from framework.observe import hublog
from framework.transports.rocketmq import requests
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.holes import first_readable
from framework.transports.rocketmq.pulled import offset_in
from framework.transports.rocketmq.question import Question
from framework.transports.rocketmq.queues import Past, Place
from framework.transports.rocketmq.sameness import PATIENCE, Sameness
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.trail import Found, Trail, behind, same_in
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.errors import NoPermission, RocketError
from framework.transports.rocketmq.wire.stored import Record

log = hublog.get(__name__)


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

    def __init__(self, session: Session, node: str, what: Subscription, past: Past) -> None:
        super().__init__(session, node, what, past, ())
        self._looks = what._replace(group=requests.LOOKS)

    def _ask(self, place: Place, at: int) -> Question:
        return self._session.question(Request.PULL_MESSAGE, requests.look(self._looks, place, at))

    def look(self) -> None:
        """Set the group back where that must be. A broker that does not say what it has holds up no POP. Raises FrameworkError
        where the session has ended."""
        read = [
            (place, trail)
            for place, trail in self._past.trails.items()
            if place.broker == self._node and place.topic == self._what.topic and trail.points
        ]
        try:
            self._look_at_all(read)
        except BrokerUnreachable as error:
            if self._session.error is not None:
                raise
            self._tell(self._what.topic, error)

    def _look_at_all(self, read: Sequence[tuple[Place, Trail]]) -> None:
        asked = [(place, trail, self._ask(place, trail.last)) for place, trail in read]
        kept = list[tuple[Place, Trail, int]]()
        for place, trail, question in asked:
            try:
                what, end = self._found_by(question, trail, trail.last)
                if what is Found.OTHER:
                    self._go_back(place, self._same(place, trail), end)
                else:
                    kept.append((place, trail, end))
            except NoPermission as error:  # to look; all others are refused as well
                self._tell(f"{place.topic}, which is looked at as group {requests.LOOKS},", error)
                return
            except RocketError as error:
                self._tell(f"queue {place.number} of {place.topic}", error)
        for place, trail, end in kept:
            try:
                self._look_where_others_read(place, trail, end)
            except RocketError as error:
                self._tell(f"queue {place.number} of {place.topic}", error)

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
            found = first_readable(self._session, self._looks, place, found, min(end, offset))
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

    def _offset(self, place: Place) -> int:
        """As its broker has it; 0 where there is none. Raises FrameworkError."""
        fields = requests.queue(self._what, place) | {"setZeroIfNotFound": "false"}
        answer = self._session.question(Request.QUERY_CONSUMER_OFFSET, fields).wait(PATIENCE, also=(Answer.QUERY_NOT_FOUND,))
        return offset_in(answer.fields, "offset", 0)

    def _tell(self, what: str, error: FrameworkError) -> None:
        log.warning("%s: whether %s is still what was read is not known: %s", self._node, what, error)
