"""Where a queue goes on that has places which its broker cannot read: of an index that was lost it fills the front with
entries that point nowhere.

Whoever asks for such a place is told to go on in the next file of the log, or at the end of the queue: what lies between, and
can be read, is passed over. So each place is asked for by itself. Blocks a greenlet of its caller's. Source:
ConsumeQueue.fillPreBlank and DefaultMessageStore.getMessage of RocketMQ 4.9.7.
"""

from __future__ import annotations

from framework.observe import hublog
from framework.transports.rocketmq import requests
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.pulled import Opened, offset_in
from framework.transports.rocketmq.queues import Place, Reading
from framework.transports.rocketmq.sameness import one_of
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.wire.codes import Request
from framework.transports.rocketmq.wire.errors import RocketError
from framework.transports.rocketmq.wire.frames import Frame

log = hublog.get(__name__)

AT_ONCE = 256
"""Places that are asked for at the same time."""
STEP = 4096
"""Places that are asked for before other queues have their turn."""
NOWHERE = "MESSAGE_WAS_REMOVING"
"""In the words of a broker: an entry of the queue points to where its log has no message."""


def leap(answer: Frame, offset: int) -> int:
    """How far a broker passes over what it may have, because the entry at ``offset`` points nowhere; 0: it does not."""
    if answer.remark != NOWHERE or offset_in(answer.fields, "minOffset", 0) > offset:
        return 0
    following = offset_in(answer.fields, "nextBeginOffset", 0)
    return following if following > offset + 1 else 0


def until_hole(reading: Reading, found: list[Opened], following: int) -> list[Opened]:
    """Those of ``found``, of an answer that goes as far as ``following``, that lie one behind the other. Without tags a broker
    leaves out only what it cannot read, and what it passes over with that."""
    if len(found) == following - (start := reading.next):
        return found
    for number, (record, _, _) in enumerate(found):
        if record.queue_offset > start:
            reading.hole = record.queue_offset
            return found[:number]
        start = max(start, record.queue_offset + 1)
    return found


def cross(session: Session, what: Subscription, reading: Reading) -> None:
    """Have it go on with the first message before ``reading.hole`` that can be read, or there. A broker that refuses to say is
    asked again. Raises BrokerUnreachable."""
    start, hole = reading.next, reading.hole
    try:
        found = first_readable(session, what, reading.place, start, min(hole, start + STEP))
    except RocketError as error:
        log.debug("%s on %s: %s", what.group, reading.place.broker, error)
        return
    reading.goes_on_at(found)
    reading.one_by_one = found == start
    if found >= hole:
        words = "%s: queue %d of %s has no message that can be read from %d to %d: a part of its index is lost"
        log.warning(words, reading.place.broker, reading.place.number, reading.place.topic, start, found - 1)


def first_readable(session: Session, what: Subscription, place: Place, start: int, end: int) -> int:
    """``end``: none is before it. Mostly the first one can. Raises FrameworkError."""
    first, count = start, 1
    while first < end:
        looks = [(at, requests.look(what, place, at)) for at in range(first, min(end, first + count))]
        asked = [(at, session.question(Request.PULL_MESSAGE, fields)) for at, fields in looks]
        for at, question in asked:
            if one_of(question, at)[0] is not None:
                return at
        first, count = first + count, AT_ONCE
    return end
