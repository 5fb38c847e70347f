"""Who may have how many in flight: what each rule of credit is for."""

from __future__ import annotations

import math

import pytest

from framework.engine.credit import (
    BUSY,
    BUSY_TERM,
    CALM,
    FLOOD,
    PATIENCE,
    PERIOD,
    SPAN,
    TERM,
    Credit,
    Share,
    fair_level,
    patience_of,
)


class Traffic:
    """Lines whose messages are handled at once, with time that passes as told."""

    def __init__(self, shares: int, max_in_flight: int, concurrency: int = 10, ahead: int = 0) -> None:
        self.credit = Credit(max_in_flight, concurrency, ahead)
        self.now, self.settled = 1.0, 0
        self.shares = [self.connect() for _ in range(shares)]
        self.tick()

    def connect(self) -> Share:
        share = self.credit.connect(2500, self.now)
        self.credit.grant(share, 0)
        return share

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += PERIOD
            for share in self.credit.tick(self.now, self.settled, PERIOD):
                self.credit.grant(share, share.in_flight)
            self.settled = 0

    def term(self, early: float = 0.0) -> None:
        """What happens in a TERM, whose timer may be a little early."""
        self.now += TERM - early
        self.credit.rotate(self.now)
        for share in self.shares:
            self.credit.grant(share, share.in_flight)

    def full(self, share: Share, *, after: float = 0.0001, in_flight: int = 0) -> None:
        """As many messages come as the grant lets in."""
        self.now += after
        count = share.granted - share.in_flight
        if count > 0:
            self.credit.arrived(share, count, self.now, 0.0)
        self.settled += share.granted - in_flight
        self.credit.grant(share, in_flight)

    def flood(self, share: Share, ticks: int = 10) -> None:
        for _ in range(ticks):
            for _ in range(12):
                self.full(share)
            self.tick()


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


def test_lines_that_end_terms_are_never_at_rest() -> None:
    assert not Traffic(3, 2).credit.at_rest


def test_a_lone_connection_starts_with_one_and_grows_to_everything_when_it_floods() -> None:
    traffic = Traffic(1, 2500)
    share = traffic.shares[0]
    assert share.granted == 1
    traffic.flood(share)
    assert share.granted >= 0.6 * 2500  # 40 % of a large headroom is not worth a command


def test_light_traffic_keeps_a_headroom_of_one_so_that_the_broker_sends_at_once() -> None:
    traffic = Traffic(1, 2500)
    share = traffic.shares[0]
    for _ in range(50):
        traffic.full(share, after=0.005)
    assert share.granted == 1


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


@pytest.mark.parametrize(("shares", "max_in_flight", "seconds"), [(3, 1, 0.25), (8, 3, 0.25), (8, 7, 0.15), (20, 1, 1.25)])
@pytest.mark.parametrize("early", [0.0, 0.0002])
def test_more_connections_than_max_in_flight_end_terms(shares: int, max_in_flight: int, seconds: float, early: float) -> None:
    traffic = Traffic(shares, max_in_flight)
    served: set[Share] = set()
    for _ in range(round(seconds / TERM)):
        traffic.term(early)
        assert sum(share.granted for share in traffic.shares) <= max_in_flight
        served.update(share for share in traffic.shares if share.granted)
    assert len(served) == shares


def test_a_message_now_and_then_costs_the_others_hardly_more_than_a_turn_without_one() -> None:
    traffic = Traffic(2, 1)
    first, second = traffic.shares
    while not first.granted:
        traffic.term()
    traffic.full(first)
    terms = 0
    while not second.granted:
        traffic.term()
        terms += 1
    assert terms * TERM <= 3 * TERM + PERIOD


def test_turns_leave_most_of_max_in_flight_in_use() -> None:
    traffic = Traffic(8, 7)
    in_use = []
    for _ in range(200):
        traffic.term()
        in_use.append(sum(share.granted for share in traffic.shares))
    assert sum(in_use) / len(in_use) > 5.5


def test_a_line_without_a_turn_whose_message_takes_long_does_not_keep_others_from_theirs() -> None:
    traffic = Traffic(3, 2)
    slow = next(share for share in traffic.shares if share.granted)
    slow.in_flight = 1
    while slow.granted:
        traffic.term()
    others = set()
    for _ in range(60):
        traffic.term()
        others.update(share for share in traffic.shares if share.granted)
    assert others == set(traffic.shares) - {slow}


def test_a_pause_takes_every_grant_at_once_and_its_end_gives_them_back() -> None:
    traffic = Traffic(2, 100)
    for share in traffic.shares:
        traffic.flood(share)
    traffic.credit.cap(0)
    assert [traffic.credit.grant(share, 5) for share in traffic.shares] == [0, 0]
    traffic.tick(20)
    assert [share.granted for share in traffic.shares] == [0, 0]
    traffic.credit.cap(None)
    traffic.tick(3)
    for share in traffic.shares:
        traffic.flood(share)
        assert share.granted > 10


def test_a_probe_is_offered_to_one_connection_after_the_other_until_one_has_a_message() -> None:
    traffic = Traffic(3, 100)
    traffic.credit.cap(0)
    traffic.tick()
    traffic.credit.cap(1)
    served: set[Share] = set()
    for _ in range(20):
        traffic.tick()
        granted = [share for share in traffic.shares if share.granted]
        assert sum(share.granted for share in granted) <= 1
        served.update(granted)
    assert served == set(traffic.shares)


def test_a_busy_connection_gives_up_its_turn_after_a_while() -> None:
    traffic = Traffic(2, 1)
    held: list[Share] = []
    for _ in range(200):
        traffic.term()
        for share in traffic.shares:
            if share.granted:
                traffic.credit.arrived(share, 1, traffic.now, 0.0)  # always something to do
                if not held or held[-1] is not share:
                    held.append(share)
    assert int(200 * TERM / (BUSY_TERM + 2 * PERIOD)) <= len(held) <= 200 * TERM / BUSY_TERM


def test_max_in_flight_lowered_takes_grants_at_once_and_raised_gives_more() -> None:
    traffic = Traffic(3, 100, concurrency=100)
    for share in traffic.shares:
        traffic.flood(share)
    traffic.credit.resize(2, traffic.now)
    assert sum(traffic.credit.grant(share, 20) for share in traffic.shares) <= 2
    traffic.credit.resize(1000, traffic.now)
    for share in traffic.shares:
        traffic.credit.grant(share, 0)
    traffic.tick(3)
    traffic.flood(traffic.shares[0])
    assert traffic.shares[0].granted > 100


def test_slow_handlers_get_no_deeper_prefetch_than_their_slots_and_twenty_milliseconds_of_work() -> None:
    traffic = Traffic(1, 2500, concurrency=50)
    share = traffic.shares[0]
    share.headroom = 2500
    for _ in range(20):
        traffic.settled = 50  # in 50 ms: 1,000 a second
        traffic.tick()
        traffic.credit.grant(share, min(share.granted, 2500))
    assert share.granted == 50 + 20


@pytest.mark.parametrize(
    ("demands", "budget", "level", "spare"),
    [
        ([1, 1, 100], 10, 8, 0), ([100, 100], 10, 5, 0), ([3, 100, 100], 11, 4, 0), ([1, 10, 10], 10, 4, 1),
        ([1, 1], 10, 10, 0), ([5, 5, 5], 2, 0, 2),
    ],
)  # fmt: skip
def test_the_fair_level_is_as_high_as_the_budget_allows(demands: list[int], budget: int, level: int, spare: int) -> None:
    assert fair_level(demands, budget) == (level, spare)


@pytest.mark.parametrize(("calls", "in_flight"), [(0, 4), (0.25, 5), (1, 8), (math.inf, 8)])
def test_what_could_not_wait_for_its_slot_is_not_asked_for(calls: float, in_flight: int) -> None:
    traffic = Traffic(3, 100, concurrency=4, ahead=2)
    traffic.credit.bear(calls)
    for _ in range(100):
        for share in traffic.shares:
            share.headroom = 50
            traffic.credit.grant(share, share.granted)  # always full, and nothing ends
        traffic.term()
    assert sum(share.granted for share in traffic.shares) == in_flight


def test_one_slot_that_nothing_may_wait_for_takes_turns_with_its_connections() -> None:
    traffic = Traffic(3, 100, concurrency=1)
    traffic.credit.bear(0)
    served: set[Share] = set()
    for _ in range(60):
        traffic.term()
        granted = [share for share in traffic.shares if share.granted]
        assert sum(share.granted for share in granted) <= 1
        served.update(granted)
    assert served == set(traffic.shares)


def test_slots_that_are_out_of_service_get_no_messages() -> None:
    traffic = Traffic(1, 100, concurrency=4)
    traffic.credit.lack(2)
    for _ in range(10):
        traffic.shares[0].headroom = 50
        traffic.credit.grant(traffic.shares[0], traffic.shares[0].granted)
        traffic.tick()
    assert traffic.shares[0].granted == 2


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
