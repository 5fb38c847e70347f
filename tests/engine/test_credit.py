"""Who may have how many in flight: how the headroom follows the traffic, and how it is shared."""

from __future__ import annotations

import pytest

from framework.engine.credit import (
    BUSY,
    CALM,
    FLOOD,
    PATIENCE,
    SPAN,
    TRY_AFTER,
    Credit,
    Share,
    fair_level,
    patience_of,
)
from tests.engine.traffic import Traffic


def state(credit: Credit) -> object:
    return [(share.granted, share.taken, share.level, share.headroom, share.wanting) for share in credit.shares], credit.budget


@pytest.mark.parametrize("shares", [1, 3])
def test_after_traffic_it_comes_to_rest_and_then_ticks_change_nothing(shares: int) -> None:
    traffic = Traffic(shares, 100)
    for share in traffic.shares:
        traffic.flood(share)
    assert not traffic.credit.at_rest
    ticks = 0
    while not traffic.credit.at_rest:
        traffic.credit.decay(traffic.now, 0.0, 1.0)
        traffic.tick()
        ticks += 1
        assert ticks < 100
    before = state(traffic.credit)
    traffic.tick(100)
    assert state(traffic.credit) == before


def test_what_was_granted_a_moment_ago_is_no_rest() -> None:
    traffic = Traffic(2, 10)
    share = traffic.shares[0]
    traffic.tick(CALM + 2)
    assert traffic.credit.at_rest
    share.headroom = 5
    traffic.credit.grant(share, 0)
    share.headroom = 1
    traffic.credit.grant(share, 0)
    assert share.granted == 1
    assert not traffic.credit.at_rest, "what was granted may still be used by the broker"
    traffic.tick(1)
    assert not traffic.credit.at_rest
    traffic.tick(2)
    assert traffic.credit.at_rest


def test_a_lone_connection_starts_with_one_and_grows_to_everything_when_it_floods() -> None:
    traffic = Traffic(1, 2500)
    share = traffic.shares[0]
    assert share.granted == 1
    traffic.flood(share)
    assert share.granted >= 0.6 * 2500  # 40 % of a large headroom is not worth a command


def light(traffic: Traffic, share: Share, messages: int, apart: float) -> int:
    """``messages`` that come one at a time, whatever is granted; how many of them a broker would have kept in its buffer."""
    kept = 0
    for _ in range(messages):
        kept += share.granted > 1
        looks = min(round(apart / SPAN), 20)
        for _ in range(looks):
            traffic.now += apart / looks
            traffic.credit.decay(traffic.now, 0.0, 1.0)
            traffic.credit.grant(share, 0)
        traffic.credit.arrived(share, 1, traffic.now, 0.0)
        traffic.credit.grant(share, 0)
    return kept


@pytest.mark.parametrize("apart", [0.004, 0.02, 0.2, 2.0])
def test_light_traffic_keeps_a_headroom_of_one_so_that_the_broker_sends_at_once(apart: float) -> None:
    traffic = Traffic(1, 2500)
    share = traffic.shares[0]
    assert light(traffic, share, TRY_AFTER, apart) == 0
    assert light(traffic, share, 1000, apart) <= 20, "a try to see how far the broker is, now and then"
    assert light(traffic, share, 10_000, apart) <= 60
    assert share.granted <= 2


def test_a_broker_whose_answers_were_quick_is_never_asked_for_two_to_see_how_far_it_is() -> None:
    traffic = Traffic(1, 2500)
    traffic.credit.disconnect(traffic.shares[0])
    near = traffic.credit.connect(2500, traffic.now, distance=SPAN / 2)
    traffic.credit.grant(near, 0)
    assert light(traffic, near, 1000, 0.02) == 0
    assert near.granted == 1


@pytest.mark.parametrize("way", [0.002, 0.02, 0.23, 0.3, 1.2])
def test_a_broker_that_is_far_is_asked_for_as_many_as_are_under_way_and_for_one_again_when_it_has_few(way: float) -> None:
    traffic = Traffic(1, 2500, concurrency=100)
    share = traffic.shares[0]
    for _ in range(3 * TRY_AFTER):
        traffic.full(share, after=way)
    assert share.granted >= 64
    light(traffic, share, 200, way)
    assert (share.granted, share.headroom, share.way) == (1, 1, 0.0)


@pytest.mark.parametrize("soon", [0.003, 0.02])
def test_a_message_on_the_heels_of_another_does_not_hide_how_far_a_broker_is(soon: float) -> None:
    """What a broker has sent for a grant that was higher for a moment has not been asked for anew."""
    traffic = Traffic(1, 2500, concurrency=100)
    share = traffic.shares[0]
    for _ in range(TRY_AFTER // 4):
        light(traffic, share, 3, 0.2)
        light(traffic, share, 1, soon)
    assert share.headroom == 2
    assert share.way > 0.2
    traffic.full(share, after=0.2)
    assert share.headroom == 4


def test_where_one_may_be_in_flight_a_broker_that_is_far_changes_nothing() -> None:
    traffic = Traffic(1, 1)
    share = traffic.shares[0]
    for _ in range(100):
        traffic.full(share, after=0.02)
    assert (share.granted, share.headroom, share.way) == (1, 1, 0.0)


def test_a_grant_is_what_is_in_flight_plus_the_headroom() -> None:
    traffic = Traffic(1, 2500, concurrency=100)
    share = traffic.shares[0]
    assert traffic.credit.grant(share, 30) == 31


@pytest.mark.parametrize(("seconds_a_message", "grows"), [(0.8 * FLOOD, True), (2 * FLOOD, False)])
def test_a_flood_that_uses_up_a_large_headroom_raises_it_though_that_took_more_than_a_span(
    seconds_a_message: float, grows: bool
) -> None:
    """Else a fast broker with small messages sends one batch, and waits for its settlements before the next."""
    traffic = Traffic(1, 2500, concurrency=2500)
    share = traffic.shares[0]
    share.headroom = 256
    traffic.credit.grant(share, 0)
    for _ in range(2):
        traffic.full(share, after=256 * seconds_a_message)
    assert (share.headroom > 256) == grows


def test_the_backlog_of_a_stall_doubles_the_headroom_and_no_more() -> None:
    traffic = Traffic(1, 2500)
    share = traffic.shares[0]
    traffic.credit.arrived(share, 1, traffic.now, 0.0)
    traffic.credit.arrived(share, 10, traffic.now, 0.0)
    assert share.headroom == 2


def test_a_message_that_lowering_the_headroom_set_free_does_not_raise_it_again() -> None:
    traffic = Traffic(1, 2500)
    share = traffic.shares[0]
    traffic.full(share)
    traffic.full(share)  # two close together
    assert share.granted == 2
    traffic.now += SPAN * 1.1
    traffic.credit.decay(traffic.now, 0.0, 1.0)
    assert traffic.credit.grant(share, 0) == 1
    traffic.full(share)
    assert share.granted == 1


def test_a_busy_hub_waits_the_longer_for_traffic_the_less_it_is_idle() -> None:
    assert patience_of(0.0, idle=1.0) == patience_of(0.0, idle=BUSY) == SPAN
    assert patience_of(0.0, idle=0.2) == pytest.approx(5 * SPAN)
    assert patience_of(0.0, idle=0.0) == PATIENCE
    assert patience_of(0.1, idle=0.0) == patience_of(0.1, idle=1.0) == 0.4  # turns that long are their own measure


def test_a_busy_hub_does_not_lower_a_headroom_that_an_idle_one_would() -> None:
    traffic = Traffic(1, 2500)
    share = traffic.shares[0]
    traffic.flood(share)
    before = share.headroom
    share.since = traffic.now
    assert traffic.credit.decay(traffic.now + 3 * SPAN, 0.0, idle=0.1)
    assert share.headroom == before
    assert not traffic.credit.decay(traffic.now + 3 * SPAN, 0.0, idle=0.9)
    assert share.headroom == 1


def test_silence_lowers_the_headroom_to_one_within_two_spans() -> None:
    traffic = Traffic(1, 2500)
    share = traffic.shares[0]
    traffic.flood(share)
    assert traffic.credit.decay(traffic.now + SPAN * 1.1, 0.0, 1.0) in (True, False)
    assert not traffic.credit.decay(traffic.now + SPAN * 2.2, 0.0, 1.0)
    assert traffic.credit.grant(share, 0) == 1


def test_long_hub_turns_stretch_the_span_or_busy_connections_would_be_lowered_unread() -> None:
    traffic = Traffic(1, 2500)
    share = traffic.shares[0]
    traffic.flood(share)
    before = share.headroom
    share.since = traffic.now
    assert traffic.credit.decay(traffic.now + 0.015, turn=0.004, idle=1.0)
    assert share.headroom == before


def test_an_idle_connection_keeps_its_floor_while_another_takes_the_rest() -> None:
    traffic = Traffic(3, 10)
    busy, *idle = traffic.shares
    traffic.flood(busy)
    assert 5 <= busy.granted <= 8
    assert [share.granted for share in idle] == [1, 1]


def test_two_greedy_connections_share_evenly_and_leave_the_idle_one_its_floor() -> None:
    traffic = Traffic(3, 101)
    first, second, idle = traffic.shares
    traffic.flood(first)
    for _ in range(20):
        for _ in range(12):
            traffic.full(first)
            traffic.full(second)
        traffic.tick()
    assert idle.granted == 1
    assert 30 <= first.granted <= 50  # 50 is even; 40 % of a large headroom is not worth a command
    assert 30 <= second.granted <= 50


def test_slow_handlers_that_leave_less_to_share_do_not_cost_an_idle_connection_its_one() -> None:
    traffic = Traffic(2, 100, concurrency=4)
    busy, idle = traffic.shares
    traffic.flood(busy, ticks=4)
    assert busy.granted > 10
    for _ in range(60):  # no message is settled any more
        traffic.tick()
        traffic.credit.grant(busy, 50)
    assert traffic.credit.budget == 5
    assert idle.granted == 1


def test_slower_handlers_leave_busy_connections_an_even_part_each_and_not_one() -> None:
    traffic = Traffic(20, 1000, concurrency=50)
    for share in traffic.shares:
        share.headroom = 50
    for _ in range(20):
        traffic.settled = 2500  # in 50 ms: 50,000 a second
        traffic.tick()
    assert traffic.credit.taken > 700
    traffic.settled = 500
    traffic.tick()
    assert traffic.credit.budget < traffic.credit.taken
    part = traffic.credit.budget // 20
    assert part > 10
    assert all(traffic.credit.grant(share, 0) >= 0.6 * part for share in traffic.shares)  # 40 % is not worth a command


def test_what_an_even_share_leaves_over_is_granted_too() -> None:
    traffic = Traffic(3, 10)
    first, second, idle = traffic.shares
    for _ in range(20):
        for share in (first, second):
            traffic.credit.grant(share, share.granted)  # always full
        traffic.tick()
    assert (first.granted, second.granted, idle.granted) == (5, 4, 1)


def test_a_new_connection_gets_its_floor_from_those_that_hold_everything() -> None:
    traffic = Traffic(1, 10)
    traffic.flood(traffic.shares[0])
    assert traffic.credit.grant(traffic.shares[0], 9) == 10
    late = traffic.connect()
    assert late.granted == 0
    traffic.tick(4)
    assert late.granted == 1


def test_what_was_lowered_is_not_spent_again_before_a_whole_period_has_passed() -> None:
    traffic = Traffic(2, 10)
    first, second = traffic.shares
    assert traffic.credit.grant(first, 8) == 9
    traffic.tick(3)
    assert traffic.credit.grant(first, 0) == 1
    second.headroom = 9
    traffic.tick()  # it may have been lowered a moment before this tick
    assert second.granted == 1
    traffic.tick()
    assert second.granted == 9


def test_what_a_request_may_still_bring_is_not_spent_again_until_it_has_ended() -> None:
    traffic = Traffic(2, 10)
    first, second = traffic.shares
    traffic.credit.grant(first, 8)
    traffic.credit.grant(first, 0)
    for _ in range(6):
        first.exposed, second.headroom = 8, 9
        traffic.tick()
    assert (first.granted, second.granted) == (1, 2)
    first.exposed = 0
    traffic.tick()
    second.headroom = 9
    traffic.tick()
    assert second.granted == 9


def test_what_is_still_in_flight_is_not_spent_again_however_long_ago_its_grant_was_lowered() -> None:
    traffic = Traffic(2, 10)
    first, second = traffic.shares
    traffic.credit.grant(first, 8)
    for _ in range(6):
        second.headroom = 9
        traffic.tick()
    assert (first.in_flight, first.granted, second.granted) == (8, 5, 2)


@pytest.mark.parametrize(
    ("demands", "budget", "level", "spare"),
    [
        ([1, 1, 100], 10, 8, 0), ([100, 100], 10, 5, 0), ([3, 100, 100], 11, 4, 0), ([1, 10, 10], 10, 4, 1),
        ([1, 1], 10, 10, 0), ([5, 5, 5], 2, 0, 2),
    ],
)  # fmt: skip
def test_the_fair_level_is_as_high_as_the_budget_allows(demands: list[int], budget: int, level: int, spare: int) -> None:
    assert fair_level(demands, budget) == (level, spare)


def test_messages_that_must_be_asked_for_are_quick_when_they_come_within_a_round_trip() -> None:
    """A broker that answers after 20 ms would be asked for one at a time for ever."""
    traffic = Traffic(1, 100, concurrency=100)
    near, far = traffic.shares[0], traffic.credit.connect(2500, traffic.now, round_trip=0.05)
    traffic.credit.disconnect(near)
    traffic.credit.grant(far, 0)
    traffic.full(far, after=0.02)
    for _ in range(6):
        traffic.full(far, after=0.02)
        assert traffic.credit.decay(traffic.now + 0.015, 0.0, 1.0), "the next ones are on their way"
    assert far.headroom == 64
    traffic.credit.decay(traffic.now + 0.11, 0.0, 1.0)
    assert not traffic.credit.decay(traffic.now + 0.25, 0.0, 1.0)


def test_without_a_round_trip_a_message_each_20_ms_is_no_flood() -> None:
    traffic = Traffic(1, 100, concurrency=100)
    for _ in range(6):
        traffic.full(traffic.shares[0], after=0.02)
    assert traffic.shares[0].headroom == 1
