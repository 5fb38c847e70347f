"""Which leases are over by our own clock: a touch counts from when it was sent, once the server is known to have read it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from framework.message import Message
from framework.transports.nats.leases import Leases

LEASE = 10.0  # 9.5 of it are counted on


@pytest.fixture
def session() -> SimpleNamespace:
    """All that it is asked for."""
    return SimpleNamespace(proven=0.0)


@pytest.fixture
def leases(session: SimpleNamespace) -> Leases:
    return Leases(session, LEASE)


def message(body: bytes = b"1") -> Message:
    return Message(body, 0, 1, body, None)


def test_a_lease_that_is_not_touched_is_over_shortly_before_its_time(leases: Leases):
    first, second = message(), message(b"2")
    in_flight = {first: 1.0, second: 3.0}
    assert leases.over(in_flight, 10.4) == []
    assert leases.over(in_flight, 10.6) == [first]
    assert leases.over(in_flight, 12.6) == [first, second]
    assert [leases.is_over(first, 1.0, now) for now in (10.4, 10.6)] == [False, True]


def test_a_touch_begins_the_lease_anew_once_the_server_is_known_to_have_read_it(leases: Leases, session: SimpleNamespace):
    one = message()
    leases.touched(one, 1.0, 5.0)
    in_flight = {one: 5.0}
    assert leases.over(in_flight, 10.6) == [one]
    assert leases.is_over(one, 5.0, 10.6)
    session.proven = 5.0
    assert leases.over(in_flight, 14.4) == []
    assert not leases.is_over(one, 5.0, 14.4)
    assert leases.over(in_flight, 14.6) == [one]


def test_a_touch_before_the_last_one_is_known_to_be_read_counts_for_nothing_yet(leases: Leases, session: SimpleNamespace):
    one = message()
    leases.touched(one, 1.0, 5.0)
    leases.touched(one, 5.0, 8.0)
    assert leases.over({one: 8.0}, 10.6) == [one]
    session.proven = 6.0
    assert leases.over({one: 8.0}, 14.4) == []
    assert leases.over({one: 8.0}, 14.6) == [one], "the second has not been read for certain"


def test_a_touch_that_is_not_read_yet_takes_nothing_from_the_one_before(leases: Leases, session: SimpleNamespace):
    one = message()
    leases.touched(one, 1.0, 5.0)
    session.proven = 5.0
    leases.touched(one, 5.0, 8.0)
    assert leases.over({one: 8.0}, 14.4) == []
    assert leases.over({one: 8.0}, 14.6) == [one]


def test_what_is_settled_is_forgotten(leases: Leases):
    one = message()
    assert leases.due([(one, 1.0)], 5.0, ()) == [one]
    leases.drop(one)
    assert leases.over({}, 100.0) == []
    assert leases.kept() == []


def test_what_is_touched_in_the_hubs_place_is_kept_until_the_hub_has_learned_of_it(leases: Leases, session: SimpleNamespace):
    one, other = message(), message(b"2")
    assert leases.due([(one, 1.0), (other, 1.5)], 4.0, ()) == [], "a third of a lease is not over"
    assert leases.due([(one, 1.0), (other, 1.5)], 4.4, ()) == [one]
    assert leases.due([(one, 1.0), (other, 1.5)], 5.0, ()) == [other]
    assert leases.due([(one, 1.0), (other, 1.5)], 7.0, ()) == [], "both were touched"
    assert leases.due([(one, 1.0), (other, 1.5)], 8.0, ()) == [one]
    session.proven = 8.0
    assert leases.over({one: 1.0, other: 1.5}, 12.0) == [], "by the hub's own notes they would be"
    assert leases.kept() == [(other, 5.0), (one, 8.0)]
    assert leases.kept() == []


def test_what_has_run_for_too_long_is_not_touched_in_the_hubs_place(leases: Leases):
    one, other = message(), message(b"2")
    assert leases.due([(one, 1.0), (other, 1.0)], 6.0, {one}) == [other]
