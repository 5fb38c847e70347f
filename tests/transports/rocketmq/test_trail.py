"""What is remembered of a queue that was read, and how far it is still the same: against a model, and a canned broker."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.transports import open_transports
from framework.transports.rocketmq.queues import Place, Reading
from framework.transports.rocketmq.trail import MOST, Found, Trail, behind, follows, same_of
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.canned import NAME, QUEUES, Canned
from tests.transports.rocketmq.kit import Sink, until


def trail_of(*offsets: int) -> Trail:
    made = Trail()
    for offset in offsets:
        made.add(offset, b"id %d" % offset, offset)
    return made


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3000), st.data())
def test_few_points_are_kept_and_the_further_back_the_further_apart(steps: list[int], data: st.DataObject) -> None:
    """As a reader makes them: what is handled again is a small part of what was lost, or an answer or two."""
    offsets, at = [], -1
    for step in steps:
        offsets.append(at := at + step)
    trail = trail_of(*offsets)
    points = trail.points
    assert len(points) <= MOST
    assert (points[0], points[-1]) == (offsets[0], offsets[-1])
    lost_from = data.draw(st.sampled_from(offsets))
    last = max((one for one in points if one < lost_from), default=0)
    lost = len([one for one in offsets if one >= lost_from])
    again = len([one for one in offsets if last < one < lost_from])
    assert again <= 1 + lost


def test_a_point_knows_its_message_by_id_and_time_and_what_is_read_again_takes_its_place() -> None:
    trail = trail_of(3, 9)
    assert trail.is_same(9, b"id 9", 9)
    assert not trail.is_same(9, b"id 9", 10), "an id that was given out again"
    assert not trail.is_same(9, b"id 8", 9)
    trail.add(5, b"id 5", 5)
    assert (trail.points, trail.most) == ([3, 5], 10), "it was read further once"


def test_the_last_message_of_each_answer_is_a_point_and_the_first_one_of_all() -> None:
    trail = Trail()
    for taken in ([], [3, 3], [4, 9], [10, 20]):
        trail.note([(offset, b"id", offset) for offset in taken])
    assert trail.points == [3, 9, 20]
    trail = Trail()
    trail.note([(3, b"id", 3), (9, b"id", 9)])
    assert trail.points == [3, 9]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_the_points_that_are_the_same_are_found_by_few_looks(expired: int, same: int, other: int) -> None:
    looks: list[int] = []

    def look(at: int) -> Found:
        looks.append(at)
        return Found.EXPIRED if at < expired else Found.SAME if at < expired + same else Found.OTHER

    points = range(expired + same + other)
    assert same_of(points, look) == expired + same
    assert len(looks) == len(set(looks)) <= 8
    if not other:
        assert len(looks) <= 1, "what mostly is costs one"


@given(st.lists(st.integers(0, 50), unique=True).map(sorted), st.integers(0, 40), st.integers(0, 45), st.integers(-1, 51))
def test_the_first_message_behind_a_place_in_the_log_is_found(log: list[int], expired: int, offset: int, kept: int) -> None:
    """Of a queue that has a message at each of ``log``, and lost the first of them, and what is behind the last."""

    def look(at: int) -> int:
        return -1 if at < expired else log[at] if at < len(log) else sys.maxsize

    first = next((at for at in range(expired, len(log)) if log[at] > kept), max(expired, len(log)))
    assert behind(kept, offset, look) == min(offset, first)


def test_a_queue_that_ends_earlier_is_not_read_until_it_is_known_how_far_it_is_the_same() -> None:
    trail = trail_of(9)
    reading = Reading(Place("t", "b", 0), 10, trail)
    assert (reading.astray, reading.room) == (True, 0)
    reading.goes_on_at(10)
    assert not reading.astray
    assert reading.moved(0)
    assert (reading.astray, reading.next, reading.room) == (True, 10, 0)
    reading.goes_on_at(6)
    assert (reading.astray, reading.next, reading.ahead, reading.mark, reading.told) == (False, 6, 6, 6, 10)
    assert not Reading(Place("t", "b", 0), 10).astray


STEPS = ("publish", "read", "read others'", "saved", "lost")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 12), st.integers(0, 12), st.booleans()), max_size=40))
def test_nothing_that_was_not_read_is_passed_by_when_the_end_of_a_queue_is_lost(steps: list[tuple[str, int, int, bool]]) -> None:
    """Its messages are numbers, each of which there is once. A broker that lost the end says a group is where it was, or where
    it was when that was saved; what is published until it is asked lies at the offsets that were lost."""
    queue, seen, reading = list[int](), set[int](), Reading(Place("t", "b", 0), 0)
    trail, saved, numbers = reading.trail, 0, itertools.count()

    def look(at: int) -> tuple[Found, int]:
        if at >= len(queue):
            return Found.OTHER, len(queue)
        return Found.SAME if trail.is_same(at, b"id", queue[at]) else Found.OTHER, len(queue)

    for what, count, then, forgets in steps:
        if what == "publish":
            queue += itertools.islice(numbers, count)
        elif what == "saved":
            saved = reading.next
        elif what != "lost":
            first, reading.next = reading.next, min(len(queue), reading.next + count)
            seen.update(queue[first : reading.next])
            if what == "read" and first < reading.next:
                trail.add(reading.next - 1, b"id", queue[reading.next - 1])
        else:
            reading.ended()
            said = reading.next = saved if forgets else reading.next
            del queue[len(queue) - min(count, len(queue)) :]
            queue += itertools.islice(numbers, then)
            if trail:
                reading.goes_on_at(follows(trail, said, look))
                assert set(queue[: reading.next]) <= seen
                saved = min(saved, reading.next)
            else:  # nothing was for us
                seen.update(queue[:said])


def test_where_nothing_was_lost_it_goes_on_where_its_broker_says() -> None:
    def same(at: int) -> tuple[Found, int]:
        return Found.SAME, 30

    assert follows(trail_of(4, 9), 10, same) == 10
    assert follows(trail_of(4, 9), 7, same) == 7, "what its broker has forgotten comes again"
    assert follows(trail_of(4, 9), 25, same) == 25, "another member has read on"
    assert follows(trail_of(4, 9), 31, same) == 10, "which was lost since"
    trail = trail_of(4, 9)
    assert follows(trail, 10, lambda at: (Found.SAME if at == 4 else Found.OTHER, 30)) == 5
    assert (trail.points, trail.most) == ([4], 10), "up to there nobody else has read what came since"


def test_a_queue_that_took_the_place_of_another_unseen_is_another_although_its_last_points_are_the_same() -> None:
    trail = trail_of(4, 9)
    assert (trail.witness, trail.sure) == (4, 1), "of one point it is known that it is of one queue"
    trail.is_sure_of(9)
    assert (trail.witness, trail.sure) == (None, 2)
    trail.add(15, b"id 15", 15)  # of the new one
    assert (trail.witness, trail.sure) == (9, 2)
    assert follows(trail, 16, lambda at: (Found.SAME if at == 15 else Found.OTHER, 30)) == 0
    assert (trail.points, trail.most) == ([], 16)
    trail.add(3, b"id 3", 3)
    assert (trail.witness, trail.sure) == (3, 1)


def test_what_is_read_again_from_an_earlier_offset_is_not_known_to_be_of_the_queue_that_was_there() -> None:
    trail = trail_of(4, 9)
    trail.is_sure_of(9)
    trail.add(6, b"other", 6)
    assert (trail.points, trail.witness) == ([4, 6], 4)


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 300))
def test_however_much_is_read_of_a_queue_that_was_made_anew_a_point_of_the_old_one_tells(old: int, known: int, new: int) -> None:
    trail = trail_of(*range(old))
    if known:
        trail.is_sure_of(min(known, old) - 1)
    for offset in range(old, old + new):
        trail.add(offset, b"new %d" % offset, offset)
    assert trail.witness is not None
    assert trail.witness < old


def test_a_reader_for_whom_nothing_was_begins_again_where_it_began_and_not_where_it_came_to() -> None:
    """All that it read had other tags. What lies there now may be for it."""
    reading = Reading(Place("t", "b", 0), 0)
    assert reading.moved(30)
    reading.ended()
    assert Reading(Place("t", "b", 0), 30, reading.trail).astray
    assert follows(reading.trail, 30, lambda _: (Found.OTHER, 50)) == 0
    reading = Reading(Place("t", "b", 0), 10)
    reading.ended()
    assert not reading.trail, "what was before it began others have read"


class Again(Canned):
    """Says of each queue how far its group is, and refuses the looks at single messages of queue 2."""

    def __init__(self, messages: int, refusal: int) -> None:
        super().__init__(messages)
        self.looks: list[tuple[int, int]] = []
        self.refusal = refusal

    def _said(self, asked: Frame) -> Any:
        if asked.code == Request.QUERY_CONSUMER_OFFSET and not asked.fields["topic"].startswith("%RETRY%"):
            return Answer.SUCCESS, {"offset": str(self.committed[int(asked.fields["queueId"])])}, b""
        if asked.code == Request.PULL_MESSAGE and asked.fields["sysFlag"] == "4":
            self.looks.append((queue := int(asked.fields["queueId"]), int(asked.fields["queueOffset"])))
            if queue == 2 and self.refusal:
                return self.refusal, {}, b""
        return super()._said(asked)

    def _commit(self, asked: Mapping[str, str]) -> None:
        if not asked["topic"].startswith("%RETRY%"):
            super()._commit(asked)


@pytest.mark.parametrize("refusal", [0, Answer.NO_PERMISSION, Answer.SYSTEM_ERROR])
def test_a_queue_that_is_read_again_is_looked_at_twice_and_one_that_nobody_may_look_at_holds_up_no_other(refusal: int) -> None:
    server = Again(40, refusal)
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])

    @contextmanager
    def reading() -> Iterator[Sink]:
        sink: Any = Sink()
        connection = transport.connect(NAME, server.topic, "billing", sink)
        connection.grant(200)
        yield sink
        until(lambda: server.committed.total() == server.messages * QUEUES)
        connection.close()
        until(lambda: sink.closings)

    with reading() as sink:
        until(lambda: sink.bodies.total() == 40 * QUEUES)
    assert server.looks == []
    server.messages = 60
    with reading() as sink:
        if refusal == Answer.SYSTEM_ERROR:  # it is asked again, a second later
            until(lambda: sink.bodies.total() == 20 * (QUEUES - 1))
            server.refusal = 0
        until(lambda: sink.bodies.total() == 20 * QUEUES)
    looks = {(queue, at) for queue in range(QUEUES) for at in (0, 39)}  # it was not seen that both are of one queue
    assert set(server.looks) == looks - ({(2, 39)} if refusal == Answer.NO_PERMISSION else set())
    assert refusal == Answer.SYSTEM_ERROR or len(server.looks) == len(set(server.looks))
    transport.close()
    server.close()


@pytest.mark.parametrize("refusal", [0, Answer.SYSTEM_ERROR])
def test_a_reader_of_some_tags_looks_at_what_is_before_the_first_that_it_may_read(refusal: int) -> None:
    """Nothing of the queue may be for it. One that may not look reads all the same."""
    server = Again(40, refusal)
    server.committed.update(dict.fromkeys(range(QUEUES), 30))
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull&tags=a"])
    sink: Any = Sink()
    connection: Any = transport.connect(NAME, server.topic, "billing", sink)
    connection.grant(200)
    until(lambda: len(connection.readings) == QUEUES + 1)  # one is of the topic of what comes again
    assert server.looks == [(queue, 29) for queue in range(QUEUES)]
    found = {place.number: one.trail.points for place, one in connection.readings.items() if place.topic == server.topic}
    assert found == {queue: [] if refusal and queue == 2 else [29] for queue in range(QUEUES)}
    connection.close()
    until(lambda: sink.closings)
    transport.close()
    server.close()
