"""Who may have a message where there are fewer than connections or slots: terms, probes, pauses, and what may not wait."""

from __future__ import annotations

import math

import pytest

from framework.engine.credit import (
    BUSY_TERM,
    PERIOD,
    TERM,
    Share,
)
from tests.engine.traffic import Traffic


def test_lines_that_end_terms_are_never_at_rest() -> None:
    assert not Traffic(3, 2).credit.at_rest


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


def test_the_place_of_a_line_that_has_ended_goes_to_one_that_waits_and_not_to_the_busiest() -> None:
    traffic = Traffic(4, 2)
    while sum(share.granted for share in traffic.shares) < 2:
        traffic.term()
    busy, other = (share for share in traffic.shares if share.granted)
    for _ in range(3):
        traffic.full(busy)  # more comes than it may have
    traffic.credit.disconnect(other)
    traffic.shares.remove(other)
    traffic.full(busy)
    assert busy.granted == 1
    traffic.term()
    assert sorted(share.granted for share in traffic.shares) == [0, 1, 1]


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
