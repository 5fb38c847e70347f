"""Which queues a member of a group reads by PULL, and how far each is done: arithmetic only."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.transports.rocketmq.pulled import LEVELS, following, level_of
from framework.transports.rocketmq.queues import SPAN, Absent, Place, Reading, allocated

EIGHT = [Place("orders", broker, number) for broker in ("broker-a", "broker-b") for number in range(4)]


def as_java_does(places: list[Place], members: list[str], me: str) -> list[Place]:
    """AllocateMessageQueueAveragely, line by line."""
    index, size, count = members.index(me), len(places), len(members)
    mod = size % count
    average = 1 if size <= count else (size // count + 1 if mod > 0 and index < mod else size // count)
    start = index * average if mod > 0 and index < mod else index * average + mod
    return [places[(start + i) % size] for i in range(max(0, min(average, size - start)))]


@given(st.integers(1, 40), st.integers(1, 50))
def test_queues_are_shared_as_javas_client_shares_them_and_each_has_one_reader(queues: int, count: int) -> None:
    places = [Place("t", "b", number) for number in range(queues)]
    members = [f"m{number:03}" for number in range(count)]
    shares = [allocated(reversed(places), reversed(members), me) for me in members]
    assert shares == [as_java_does(places, members, me) for me in members]
    assert sorted(place for share in shares for place in share) == places


def test_who_is_no_member_reads_nothing() -> None:
    assert allocated(EIGHT, ["a", "b"], "c") == []
    assert allocated(EIGHT, ["a", "b", "c"], "c") == EIGHT[6:]


def test_a_member_that_is_named_twice_has_both_shares() -> None:
    """By a broker that has not found its first connection dead yet."""
    assert allocated(EIGHT, ["a", "a"], "a") == EIGHT
    assert allocated(EIGHT, ["b", "a", "b", "c"], "b") == EIGHT[2:6]
    assert [allocated(EIGHT, ["b", "a", "b", "c"], one) for one in "ac"] == [EIGHT[:2], EIGHT[6:]]


def test_the_mark_is_the_first_that_is_not_settled_and_never_passes_it() -> None:
    reading = Reading(EIGHT[0], 10)
    for offset in (10, 11, 13):  # 12 was no message for us
        reading.took(offset)
    assert (reading.mark, reading.next, reading.idle) == (10, 14, False)
    reading.settled(11)
    assert (reading.mark, reading.would_repeat(10), reading.would_repeat(13)) == (10, True, False)
    reading.settled(10)
    assert reading.mark == 13
    reading.settled(13)
    assert (reading.mark, reading.idle) == (14, True)


@pytest.mark.parametrize(("offset", "taken"), [(11, False), (12, True), (20, True)])
def test_a_broker_may_name_what_comes_next_unless_that_is_in_flight(offset: int, taken: bool) -> None:
    reading = Reading(EIGHT[0], 10)
    for at in (10, 11):
        reading.took(at)
    reading.settled(11)
    assert reading.moved(offset) is taken
    assert (reading.next, reading.ahead) == ((offset, offset) if taken else (12, 12))
    assert reading.would_repeat(10)


def test_a_broker_that_begins_anew_is_followed_once_nothing_is_in_flight() -> None:
    reading = Reading(EIGHT[0], 10)
    reading.took(10)
    reading.settled(10)
    assert reading.moved(3)
    assert (reading.next, reading.mark, reading.would_repeat(2)) == (3, 3, False)


def test_no_more_is_pulled_while_one_message_holds_up_the_mark_for_too_long() -> None:
    reading = Reading(EIGHT[0], 0)
    for offset in range(SPAN):
        reading.took(offset)
    for offset in range(1, SPAN):
        reading.settled(offset)
    assert reading.room == 0
    reading.settled(0)
    assert reading.room == SPAN
    reading.leaving = True
    assert reading.room == 0


@given(st.floats(0, 10_000))
def test_a_delay_is_kept_by_a_level_that_is_no_shorter(delay: float) -> None:
    level = level_of(delay)
    assert LEVELS[level - 1] >= min(delay, LEVELS[-1])
    assert level == 1 or LEVELS[level - 2] < delay


def test_a_queue_that_has_lost_messages_is_read_on_only_where_none_of_it_is_in_flight() -> None:
    reading = Reading(Place("t", "b", 0), 10)
    for offset in (10, 11):
        reading.took(offset)
    assert reading.moved(40), "old ones were deleted by the broker"
    assert (reading.next, reading.mark) == (40, 10)
    assert not reading.moved(5), "another message has the offset 10 by now"
    assert (reading.next, reading.mark) == (40, 10)
    reading.settled(10)
    reading.settled(11)
    assert reading.moved(5)
    assert (reading.next, reading.mark) == (5, 5)
    reading.took(5)
    assert not reading.would_repeat(5), "what was settled at higher offsets were other messages: at a stop none is sent back"


@pytest.mark.parametrize(
    ("said", "offset"),
    [
        ({"minOffset": "0", "maxOffset": "40", "nextBeginOffset": "40"}, 0),
        ({"minOffset": "0", "maxOffset": "0", "nextBeginOffset": "0"}, 0),
        ({"minOffset": "30", "maxOffset": "40", "nextBeginOffset": "40"}, 40),
        ({"minOffset": "300", "maxOffset": "340", "nextBeginOffset": "300"}, 300),
        ({"minOffset": "0", "maxOffset": "340", "nextBeginOffset": "230"}, 230),
        ({"nextBeginOffset": "40"}, 40),
        ({}, 200),
    ],
    ids=[
        "made anew",
        "made anew and empty",
        "its end was lost",
        "old ones were deleted",
        "filtered",
        "says little",
        "says nothing",
    ],
)
def test_a_queue_that_was_made_anew_is_read_from_its_first_message(said: dict[str, str], offset: int) -> None:
    assert following(said, 200) == offset


@pytest.mark.parametrize("why", ["leaving", "refused", "astray", "ends", "hole"])
def test_a_queue_that_is_not_to_be_pulled_has_no_room(why: str) -> None:
    reading = Reading(EIGHT[0], 10)
    assert reading.room == SPAN
    setattr(reading, why, 7 if why == "hole" else True)
    assert reading.room == 0


def test_a_queue_is_pulled_one_by_one_until_it_is_known_which_lies_where() -> None:
    reading = Reading(EIGHT[0], 10)
    reading.one_by_one = True
    assert reading.room == 1
    reading.comes(11, 20)
    assert (reading.room, reading.ahead, reading.next) == (SPAN - 1, 11, 10)


def test_room_is_what_may_come_again_less_what_was_pulled() -> None:
    reading = Reading(EIGHT[0], 10)
    reading.took(10)
    reading.ahead = 10 + SPAN - 1
    assert reading.room == 1
    reading.ahead += 1
    assert reading.room == 0
    reading.ahead += 5
    assert reading.room == 0


@pytest.mark.parametrize(("end", "more"), [(15, False), (16, True)])
def test_an_answer_says_whether_there_is_more(end: int, more: bool) -> None:
    reading = Reading(EIGHT[0], 10)
    reading.comes(15, end)
    assert (reading.ahead, reading.more, reading.ends) == (15, more, not more)
    reading.opened()
    assert (reading.ahead, reading.more, reading.ends) == (10, True, False), "none of it was taken"
    reading.comes(5, 10)
    assert reading.ahead == 10
    reading.opened()
    assert not reading.more


def test_what_a_queue_ended_with_is_remembered_where_something_was_read() -> None:
    reading = Reading(EIGHT[0], 10)
    reading.goes_on_at(15)
    reading.ended()
    assert reading.trail.most == 0, "where it began somebody else has read"
    fresh = Reading(EIGHT[0], 0)
    fresh.goes_on_at(15)
    fresh.ended()
    assert fresh.trail.most == 15
    fresh.goes_on_at(5)
    fresh.ended()
    assert fresh.trail.most == 15, "the furthest that it ever was"
    assert Reading(EIGHT[0], 3, fresh.trail).astray, "it may be another by now"


def test_a_queue_that_goes_on_elsewhere_is_neither_astray_nor_has_a_hole() -> None:
    reading = Reading(EIGHT[0], 10, astray=True)
    reading.hole = 30
    reading.last_settled = 9
    reading.goes_on_at(10)
    assert (reading.next, reading.ahead, reading.astray, reading.hole, reading.last_settled) == (10, 10, False, 0, 9)
    reading.goes_on_at(9)
    assert reading.last_settled == -1


def test_a_member_that_is_named_no_more_is_absent_from_then_on() -> None:
    absent = Absent()
    assert absent.first == math.inf
    absent.note(["a", "b"], 1.0)
    assert (absent.first, absent.before(100.0)) == (math.inf, [])
    absent.note(["a"], 2.0)
    absent.note([], 3.0)
    assert (absent.first, absent.before(1.9), absent.before(2.0), absent.before(3.0)) == (2.0, [], ["b"], ["a", "b"])
    absent.again("b", 5.0)
    assert (absent.first, absent.before(4.0)) == (3.0, ["a"])
    absent.note(["a"], 6.0)
    assert absent.before(9.0) == ["b"]
    absent.forget("b")
    assert absent.first == math.inf


def test_a_queue_begins_with_nothing_under_way() -> None:
    reading = Reading(EIGHT[0], 10)
    assert (reading.next, reading.ahead, reading.told, reading.mark, reading.last_settled) == (10, 10, 10, 10, -1)
    assert (reading.asking, reading.telling, reading.more, reading.sent_back, reading.hole) == (False, False, False, 0, 0)
    assert Reading(EIGHT[0], 10, astray=True).astray


def test_what_lies_behind_the_last_that_was_settled_would_not_come_twice() -> None:
    reading = Reading(EIGHT[0], 10)
    reading.took(10)
    reading.took(11)
    reading.settled(11)
    assert (reading.would_repeat(10), reading.would_repeat(11), reading.would_repeat(12)) == (True, False, False)


def test_a_queue_that_goes_back_to_what_was_read_of_it_may_be_another() -> None:
    reading = Reading(EIGHT[0], 10)
    reading.trail.add(9, b"id", 7)
    assert reading.moved(12)
    assert (reading.astray, reading.next) == (False, 12)
    assert reading.moved(12)
    assert not reading.astray
    assert reading.moved(11)
    assert (reading.astray, reading.next) == (True, 12)


def test_a_member_that_goes_on_in_the_middle_of_what_it_knows_keeps_the_furthest() -> None:
    reading = Reading(EIGHT[0], 10)
    reading.trail.add(10, b"id", 7)
    reading.goes_on_at(20)
    reading.ended()
    assert reading.trail.most == 20
