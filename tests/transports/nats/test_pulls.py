"""How many messages may come: pulls asked for, brought, ended and taken back are never more than what was granted."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from framework.transports.nats.pulls import BEAT, EXPIRES, SLACK, Pulls, request


def make() -> Pulls:
    numbers = itertools.count(1)
    return Pulls(lambda: next(numbers))


@given(st.lists(st.tuples(st.sampled_from(["grant", "bring", "end", "gone"]), st.integers(0, 60)), max_size=60))
def test_what_may_still_come_is_never_more_than_the_largest_room_that_was_not_confirmed_to_be_over(steps):
    pulls, open_pulls, cancelled, room = make(), {}, [], 0
    rooms = [0]
    for what, number in steps:
        if what == "grant":
            room = number
            rooms = [*rooms, room] if cancelled or pulls.outstanding > room else [room]
            cancelled += pulls.excess(room)
        elif what == "bring" and open_pulls:
            sid = sorted(open_pulls)[number % len(open_pulls)]
            pulls.brought(sid, 0.0)
            open_pulls[sid] -= 1
            room -= 1
        elif what == "end" and open_pulls:
            sid = sorted(open_pulls)[number % len(open_pulls)]
            if sid not in cancelled:
                pulls.ended(sid)
                open_pulls.pop(sid)
        elif what == "gone":
            pulls.gone(cancelled)
            for sid in cancelled:
                open_pulls.pop(sid, None)
            cancelled = []
        open_pulls = {sid: left for sid, left in open_pulls.items() if left}
        for sid, count, _ in pulls.wanted(max(0, room), 0.0):
            assert sid not in open_pulls or not open_pulls[sid]
            open_pulls[sid] = count
        assert pulls.outstanding == sum(open_pulls.values())
        assert pulls.outstanding <= max(rooms)


def test_small_gaps_are_not_asked_for_one_by_one():
    pulls = make()
    assert [count for _, count, _ in pulls.wanted(100, 0.0)] == [100]
    for _ in range(49):
        pulls.brought(1, 0.0)
    assert pulls.wanted(100, 0.0) == []
    pulls.brought(1, 0.0)
    assert [count for _, count, _ in pulls.wanted(100, 0.0)] == [50]


def test_a_sid_is_used_again_once_its_pull_is_over_for_certain():
    pulls = make()
    assert pulls.wanted(1, 0.0) == [(1, 1, True)]
    pulls.brought(1, 0.0)
    assert pulls.wanted(1, 0.0) == [(1, 1, False)]
    assert pulls.excess(0) == [1]
    assert pulls.wanted(1, 0.0) == [], "it may still bring one"
    pulls.gone([1])
    assert pulls.wanted(1, 0.0) == [(2, 1, True)]


def test_the_sid_of_a_pull_that_ends_while_it_is_taken_back_is_not_used_before_that_is_confirmed():
    """The UNSUB is on its way: it would take the next pull's messages as well."""
    pulls = make()
    assert pulls.wanted(5, 0.0) == [(1, 5, True)]
    assert pulls.excess(0) == [1]
    pulls.ended(1)
    assert pulls.outstanding == 5
    assert pulls.wanted(10, 0.0) == [(2, 5, True)]
    pulls.gone([1])
    assert pulls.outstanding == 5


def test_the_end_of_a_pull_that_is_long_gone_changes_nothing():
    pulls = make()
    pulls.wanted(5, 0.0)
    pulls.excess(0)
    pulls.gone([1])
    pulls.ended(1)
    assert pulls.outstanding == 0
    assert pulls.wanted(3, 0.0) == [(2, 3, True)]


def test_a_pull_that_still_brings_messages_is_not_taken_back_and_counts_as_long():
    pulls = make()
    pulls.wanted(10, 0.0)
    pulls.wanted(30, 1.0)  # a second one, of 20
    pulls.brought(1, 2.0)
    assert pulls.excess(5, since=1.5) == [2]
    assert (pulls.outstanding, pulls.over(5)) == (29, 4)
    assert pulls.excess(5, since=1.5) == []
    assert pulls.excess(5, since=2.0) == [1]
    pulls.gone([1, 2])
    assert (pulls.outstanding, pulls.over(5)) == (0, -5)


def test_a_consumers_largest_batch_is_kept_to():
    pulls = make()
    pulls.largest = 40
    assert [count for _, count, _ in pulls.wanted(100, 0.0)] == [40, 40, 20]


def test_the_sid_of_a_pull_whose_last_message_comes_while_it_is_taken_back_is_not_used_before_that_is_confirmed():
    pulls = make()
    assert pulls.wanted(1, 0.0) == [(1, 1, True)]
    assert pulls.excess(0) == [1]
    pulls.brought(1, 0.0)
    assert pulls.wanted(1, 0.0) == [(2, 1, True)]
    pulls.gone([1])
    assert pulls.outstanding == 1


def test_another_server_is_told_of_each_sid_anew():
    pulls = make()
    pulls.wanted(1, 0.0)
    pulls.brought(1, 0.0)
    pulls.wanted(1, 0.0)
    pulls.wanted(5, 0.0)
    pulls.ended(1)
    assert pulls.moved() == [2, 1]
    pulls.gone([2, 1])
    assert [fresh for _, _, fresh in pulls.wanted(5, 0.0)] == [True]


def test_a_pull_that_brings_messages_needs_no_other_sign_of_life():
    pulls = make()
    pulls.wanted(5, 0.0)
    pulls.brought(1, 2 * BEAT)
    assert pulls.silent(3 * BEAT) == []
    assert pulls.silent(4 * BEAT + 2) == [1]


def test_a_pull_that_nothing_is_heard_of_for_two_beats_is_taken_back():
    pulls = make()
    pulls.wanted(5, 0.0)
    pulls.alive(1, BEAT)
    assert pulls.silent(2 * BEAT + 2) == []
    assert pulls.silent(3 * BEAT + 2) == [1]
    assert pulls.silent(3 * BEAT + 2) == []


def test_the_beat_of_a_pull_is_no_longer_than_servers_take():
    body = msgspec.json.decode(request(7))
    assert body["batch"] == 7
    assert 2 * body["idle_heartbeat"] <= body["expires"] == EXPIRES * 10**9


def three(pulls: Pulls) -> None:
    """Of ten messages each, with the SIDs 1 to 3."""
    pulls.largest = 10
    assert [(sid, count) for sid, count, _ in pulls.wanted(30, 0.0)] == [(1, 10), (2, 10), (3, 10)]


def test_no_more_pulls_are_taken_back_than_must_be() -> None:
    for room, taken in ((31, []), (30, []), (29, [1]), (20, [1]), (19, [1, 2]), (0, [1, 2, 3])):
        pulls = make()
        three(pulls)
        assert pulls.excess(room) == taken
        assert pulls.over(room) == 30 - room - 10 * len(taken)
        assert pulls.excess(room) == []
        pulls.gone(taken)
        assert pulls.outstanding == 30 - 10 * len(taken)


def test_a_pull_that_has_brought_something_since_is_left_alone() -> None:
    pulls = make()
    three(pulls)
    pulls.brought(1, 5.0)
    assert pulls.excess(0, 4.9) == [2, 3]
    assert pulls.excess(0, 5.0) == [1]


def test_a_pull_of_which_nothing_is_heard_for_two_beats_is_taken_back_once() -> None:
    pulls = make()
    three(pulls)
    pulls.alive(1, 1.0)
    pulls.brought(2, 0.5)
    pulls.alive(99, 1.0)
    limit = 2 * BEAT + SLACK
    assert pulls.silent(limit) == []
    assert pulls.silent(limit + 0.25) == [3]
    assert pulls.silent(limit + 0.75) == [2]
    assert pulls.silent(limit + 100.0) == [1]
    assert pulls.silent(limit + 200.0) == []


def test_a_pull_that_is_over_leaves_its_sid_to_another_and_one_that_is_taken_back_does_not() -> None:
    pulls = make()
    three(pulls)
    pulls.ended(2)
    assert pulls.outstanding == 20
    assert pulls.excess(10) == [1]
    pulls.ended(1)
    pulls.brought(1, 1.0)
    assert pulls.outstanding == 19
    assert pulls.wanted(60, 1.0) == [(2, 10, False), (4, 10, True), (5, 10, True), (6, 10, True), (7, 1, True)]
    assert sorted(pulls.moved()) == [2, 3, 4, 5, 6, 7], "the first is taken back already"
    pulls.clear()
    assert (bool(pulls), pulls.outstanding) == (False, 0)
