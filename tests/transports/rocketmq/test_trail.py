"""What is remembered of a queue that was read, and how far it is still the same: against a model, and a canned broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.transports import open_transports
from framework.transports.rocketmq.queues import Place, Reading
from framework.transports.rocketmq.trail import MOST, Found, Trail, same_of
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
    points = trail.before(at + 1)
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
    assert trail.before(100) == [3, 5]
    assert trail.before(5) == [3]


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
def test_a_queue_that_is_read_again_is_looked_at_once_and_one_that_nobody_may_look_at_holds_up_no_other(refusal: int) -> None:
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
    assert set(server.looks) == {(queue, 39) for queue in range(QUEUES)}
    assert refusal == Answer.SYSTEM_ERROR or len(server.looks) == QUEUES
    transport.close()
    server.close()
