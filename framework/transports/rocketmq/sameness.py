"""Where a queue goes on that may not be the one that was read: its broker lost the end of its log, or its topic was made anew.

It asks the broker for single messages, and compares them with the ``Trail`` of what was read. Blocks a greenlet of its caller's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable
from time import monotonic

from framework.observe import hublog
from framework.transports.rocketmq import requests
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.pulled import offset_in
from framework.transports.rocketmq.question import Question
from framework.transports.rocketmq.queues import Cut, Past, Place, Reading
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.trail import Found, Trail, behind, follows, same_in
from framework.transports.rocketmq.wire.codes import PULLED, Answer, Request
from framework.transports.rocketmq.wire.errors import NoPermission, RocketError
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.rocketmq.wire.stored import Stored, decode_all

log = hublog.get(__name__)

CUT = 120.0
"""Seconds after a broker was found to have lost the end of its log in which queues that are taken of others begin before what it
lost: by then they have either come back, or were taken. What others have handled since comes again."""
LOOKED = 5.0
"""Seconds in which the queues that are read are looked at once, at most."""
PATIENCE = 5.0
"""Seconds in which a broker says what lies somewhere."""


class Sameness:
    """Of the queues of one connection, at one broker. ``past``: what the group remembers here."""

    def __init__(self, session: Session, node: str, what: Subscription, past: Past, ours: Collection[Place]) -> None:
        """``ours``: what was ours when the connection before it broke."""
        self._session, self._node, self._what, self._past = session, node, what, past
        self._cut = self._cut_before = past.cuts.get(node)
        self._unseen = [place for place in ours if past.trails.get(place)]
        self._looked = monotonic()

    def is_lost(self, readings: Iterable[Reading]) -> bool:
        """Whether one of ``readings`` is another queue by now than it was when it was last asked, which is not soon again. A
        topic that is made anew shows by nothing else where a PULL waited at an offset that its new queue has reached since: it
        is answered with what lies there. Raises FrameworkError."""
        if (now := monotonic()) - self._looked < LOOKED:
            return False
        self._looked = now
        watched = [reading for reading in readings if not (reading.astray or reading.leaving)]
        asked = [
            (reading, reading.trail, at, reading.trail.last, self._ask(reading.place, at))
            for reading in watched
            if (at := reading.trail.witness) is not None
        ]
        passed = [(reading, at := reading.next - 1, self._ask(reading.place, at)) for reading in watched if self._passes(reading)]
        lost = False
        for reading, trail, at, last, question in asked:
            try:
                one, answer = one_of(question, at)
            except NoPermission:  # which is told when it is pulled
                continue
            if reading.astray or at not in trail.points:  # it was found meanwhile that it is another
                continue
            if self._found(trail, at, one, answer)[0] is Found.OTHER:
                lost = True
            else:
                trail.is_sure_of(last)
        for reading, at, question in passed:
            self._note(reading, at, question)
        return lost

    def begin(self, reading: Reading) -> None:
        """Nothing is known of ``reading``. Where some messages are not for us, it may be long until one is. Raises
        FrameworkError."""
        if self._passes(reading):
            self._note(reading, reading.next - 1, self._ask(reading.place, reading.next - 1))

    def _passes(self, reading: Reading) -> bool:
        """Whether others than those for us may lie behind the last point of its trail."""
        return bool(self._what.tags) and reading.place.topic == self._what.topic and reading.next - 1 > reading.trail.last

    def _note(self, reading: Reading, at: int, question: Question) -> None:
        try:
            one, _ = one_of(question, at)
        except RocketError as error:  # it is known a little less
            log.debug("%s on %s: %s", self._what.group, self._node, error)
            return
        if one is not None and at > reading.trail.last and not reading.astray:
            reading.trail.add(at, one.id, one.timestamp)

    def look_back(self, wanted: Collection[Place]) -> None:
        """At what was ours, and is not ``wanted``: another may have it by now, and it tells how far the log is the same."""
        while self._unseen:
            if (place := self._unseen[-1]) not in wanted:
                try:
                    self._see(place, self._past.trails[place])
                except NoPermission:
                    pass
                except RocketError as error:
                    log.debug("%s on %s: %s", self._what.group, self._node, error)
                    return
            self._unseen.pop()

    def _see(self, place: Place, trail: Trail) -> None:
        points, in_log = trail.points, dict[int, int]()
        same = same_in(trail, lambda at: self._look_at(place, trail, at, in_log)[0])
        if 0 < same < len(points) and (kept := in_log.get(points[same - 1])) is not None:
            self._note_cut(kept)

    def find(self, reading: Reading) -> None:
        """Where it ceases to be the queue that was read. Where its broker does not say, it is asked again."""
        place, offset, trail, points = reading.place, reading.next, reading.trail, len(reading.trail.points)
        in_log: dict[int, int] = {}
        try:
            found = follows(trail, offset, lambda at: self._look_at(place, trail, at, in_log)) if trail else offset
            lost = len(trail.points) < points
            if lost and (kept := in_log.get(max(trail.points, default=-1))) is not None:
                self._note_cut(kept)
            elif not lost and found > trail.most and self._kept >= 0:  # another has read it, perhaps before the loss
                found = behind(self._kept, found, lambda at: self._in_log(place, at))
        except NoPermission:  # which is told when it is pulled
            found = offset
        except RocketError as error:
            log.debug("%s on %s: %s", self._what.group, self._node, error)
            return
        if found < offset and (lost or self._kept >= 0):
            words = "%s: queue %d of %s was read up to %d there, and %s from %d on: it has lost messages, or was made anew"
            log.warning(words, self._node, place.number, place.topic, offset, "is another" if lost else "may be another", found)
        reading.goes_on_at(found)

    def _note_cut(self, kept: int) -> None:
        """The log is as it was up to there. Of what this connection finds the last tells most; of two losses the first."""
        before = self._cut_before.kept if self._cut_before is not None and self._is_recent(self._cut_before) else math.inf
        found = max(kept, self._cut.kept) if self._cut is not None and self._cut is not self._cut_before else kept
        self._cut = self._past.cuts[self._node] = Cut(int(min(before, found)), monotonic())

    @property
    def is_cut(self) -> bool:
        """Whether queues that others have read may be others."""
        return self._kept >= 0

    @property
    def _kept(self) -> int:
        """Up to there the log is as it was, while that has to be thought of; else -1."""
        return self._cut.kept if self._cut is not None and self._is_recent(self._cut) else -1

    def _is_recent(self, cut: Cut) -> bool:
        return monotonic() - cut.found < CUT

    def _look_at(self, place: Place, trail: Trail, at: int, in_log: dict[int, int]) -> tuple[Found, int]:
        """As ``follows`` looks; ``in_log`` is told where in the log what was found lies. Raises FrameworkError."""
        one, answer = one_of(self._ask(place, at), at)
        if one is not None:
            in_log[at] = one.physical_offset
        return self._found(trail, at, one, answer)

    def _found_by(self, question: Question, trail: Trail, at: int) -> tuple[Found, int]:
        """As ``_look_at``, where that is asked already."""
        return self._found(trail, at, *one_of(question, at))

    def _found(self, trail: Trail, at: int, one: Stored | None, answer: Frame) -> tuple[Found, int]:
        end = offset_in(answer.fields, "maxOffset", at)
        if one is None and offset_in(answer.fields, "minOffset", 0) > at:
            return Found.EXPIRED, end
        return Found.SAME if one is not None and trail.is_same(at, one.id, one.timestamp) else Found.OTHER, end

    def _in_log(self, place: Place, at: int) -> int:
        """As ``behind`` looks. Raises FrameworkError."""
        one, answer = one_of(self._ask(place, at), at)
        if one is not None:
            return one.physical_offset
        return -1 if offset_in(answer.fields, "minOffset", 0) > at else sys.maxsize

    def _ask(self, place: Place, at: int) -> Question:
        return self._session.question(Request.PULL_MESSAGE, requests.look(self._what, place, at))


def one_of(asked: Question, at: int) -> tuple[Stored | None, Frame]:
    """None: there is none. Raises FrameworkError."""
    answer = asked.wait(PATIENCE, also=PULLED)
    found = decode_all(answer.body) if answer.code == Answer.SUCCESS else []
    if len(found) == 1 and offset_in(answer.fields, "nextBeginOffset", 0) == at + 1:  # whatever it says itself
        return found[0], answer
    return next((one for one in found if one.queue_offset == at), None), answer
