"""The figures by which credit is divided, each by itself: the pace, the slack of a grant, rest, calm, and whose term ends."""

from __future__ import annotations

import pytest

from framework.engine.credit import BUSY_TERM, CALM, PERIOD, PREFETCH, TERM, TRY_AFTER, Credit, Share


def shares_of(credit: Credit, count: int, max_grant: int = 2500) -> list[Share]:
    made = [credit.connect(max_grant, 0.0) for _ in range(count)]
    for share in made:
        credit.grant(share, 0)
    return made


def test_the_pace_is_quick_to_rise_and_slow_to_fall() -> None:
    """The budget holds what is worked on in ``PREFETCH`` beside what is worked on now."""
    credit = Credit(10_000, 10)
    shares_of(credit, 1)
    budgets = []
    for number, pace in enumerate([0, 10_000, 5_000, 0, 20_000]):
        credit.tick(PERIOD * number, round(pace * PERIOD), PERIOD)
        budgets.append(credit.budget - 10)
    expected = [0.0, 10_000.0, 0.8 * 10_000 + 0.2 * 5_000, 0.8 * 9_000, 20_000.0]
    assert budgets == [int(pace * PREFETCH) for pace in expected]


def test_a_tick_that_comes_at_once_is_no_flood() -> None:
    credit = Credit(10_000, 10)
    shares_of(credit, 1)
    credit.tick(0.0, 10, 0.0)
    assert credit.budget == 10 + int(10 / (PERIOD / 10) * PREFETCH)


def test_it_is_at_rest_once_nothing_is_worked_ahead_any_more() -> None:
    credit = Credit(1000, 10)
    shares_of(credit, 1)
    credit.tick(0.0, round(2000 * PERIOD), PERIOD)
    ticks = 0
    while not credit.at_rest:
        ticks += 1
        for share in credit.tick(PERIOD * ticks, 0, PERIOD):
            credit.grant(share, 0)
    assert (2000 * 0.8 ** (ticks - 1) * PREFETCH >= 1 > 2000 * 0.8**ticks * PREFETCH) is True


@pytest.mark.parametrize(
    ("headroom", "in_flight", "granted"), [(10, 4, 10), (10, 5, 15), (3, 1, 4), (4, 1, 4), (4, 2, 6), (10, 0, 10)]
)
def test_of_a_large_headroom_a_little_more_or_less_is_not_worth_a_command(headroom: int, in_flight: int, granted: int) -> None:
    credit = Credit(1000, 1000)
    (share,) = shares_of(credit, 1)
    share.headroom = headroom
    assert credit.grant(share, 0) == headroom
    assert credit.grant(share, in_flight) == granted


def test_what_is_over_the_most_is_taken_back_though_it_is_little() -> None:
    credit = Credit(1000, 1000)
    (share,) = shares_of(credit, 1)
    share.headroom = 10
    assert credit.grant(share, 0) == 10
    credit.cap(9)
    assert credit.grant(share, 0) == 9


def test_levels_are_lifted_when_nobody_was_in_want_for_a_while() -> None:
    credit = Credit(4, 4)
    greedy, other = shares_of(credit, 2)
    for share in (greedy, other):
        share.headroom = 4
        credit.grant(share, 0)
    assert greedy.wanting
    credit.tick(PERIOD, 0, PERIOD)
    assert (greedy.level, other.level, greedy.wanting, other.wanting) == (2, 2, False, False)
    for number in range(CALM):
        credit.tick(PERIOD * (2 + number), 0, PERIOD)
        assert greedy.level == 2
    credit.tick(PERIOD * 10, 0, PERIOD)
    assert (greedy.level, other.level) == (4, 4)


def crowd(count: int = 4, limit: int = 2) -> tuple[Credit, list[Share]]:
    """More connections than may be in flight: the first two have their terms."""
    credit = Credit(limit, limit)
    shares = shares_of(credit, count)
    credit.rotate(0.0)
    assert [share.granted for share in shares] == [1, 1, 0, 0]
    return credit, shares


def test_of_what_is_over_the_limit_no_more_is_taken_than_that() -> None:
    credit, shares = crowd()
    credit.resize(1, 0.001)
    assert [share.granted for share in shares] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("in_flight", "after", "ends"), [(0, TERM, True), (1, TERM, False), (2, TERM, False), (1, BUSY_TERM, True)]
)
def test_a_term_with_work_is_longer(in_flight: int, after: float, ends: bool) -> None:
    credit, shares = crowd()
    for share in shares[:2]:
        share.in_flight = in_flight
    credit.rotate(after)
    assert [share.granted for share in shares[:2]] == ([0, 0] if ends else [1, 1])
    assert [share.ceded for share in shares[:2]] == [ends, ends]


def test_a_share_that_gave_up_its_term_and_is_granted_again_has_given_up_nothing() -> None:
    credit, shares = crowd()
    credit.rotate(TERM)
    assert shares[0].ceded
    credit._set(shares[0], 0)
    assert shares[0].ceded
    credit._set(shares[0], 1)
    assert not shares[0].ceded
    credit._set(shares[0], 0)
    assert not shares[0].ceded


def test_each_try_goes_by_what_came_since_the_last_one() -> None:
    """A broker may be farther than it was, or seemed."""
    credit = Credit(1000, 1000)
    (share,) = shares_of(credit, 1)
    ways = []
    for way in (0.01, 0.2):
        for _ in range(share.try_after):
            assert share.headroom == 1
            credit._came_alone(share, way)
        ways.append((share.headroom, share.way))
        share.headroom = 1
    assert ways == [(2, 1.5 * 0.01), (2, 1.5 * 0.2)]
    assert share.singles == 0


@pytest.mark.parametrize(("way", "tries"), [(0.5, TRY_AFTER), (0.0, 4 * TRY_AFTER)])
def test_a_far_broker_that_has_many_is_soon_tried_again_and_a_flood_says_nothing_of_how_far_it_is(way: float, tries: int) -> None:
    credit = Credit(1000, 1000)
    (share,) = shares_of(credit, 1)
    share.way, share.headroom, share.try_after, share.used_up = way, 4, 4 * TRY_AFTER, 0.0
    credit.arrived(share, 4, 0.00001, 0.0)
    assert (share.headroom, share.try_after) == (8, tries)


def test_what_changes_is_reckoned_with_at_once() -> None:
    credit = Credit(1000, 10, ahead=5)
    assert credit.budget == 15
    credit.work_at_once(20)
    assert credit.budget == 25
    credit.lack(15)
    assert credit.budget == 10
    credit.bear(0.7)  # of five that might wait, three could be kept until it is their turn
    assert credit.budget == 5 + 3
    credit.bear(0.0)
    assert credit.budget == 5
    credit.lack(0)
    assert credit.budget == 20
    credit.cap(1)
    assert credit.budget == 1
    credit.cap(None)
    assert credit.budget == 20
    credit.resize(12, 0.0)
    assert credit.budget == 12
