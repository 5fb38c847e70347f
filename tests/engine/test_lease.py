"""Which leases are prolonged, which run out on purpose, and what is too late to start. Times are made up."""

from __future__ import annotations

import math

import pytest

from framework.engine.lease import LeaseKeeper, calls_ahead
from framework.errors import AlreadySettled
from framework.message import Message
from framework.transports.contract import Limits

LEASE, MAX_LEASE = 60.0, 900.0


class Held:
    """A connection with messages that were received when the test says."""

    def __init__(self) -> None:
        self.limits = Limits(LEASE, MAX_LEASE, 2500)
        self.in_flight: dict[Message, float] = {}
        self.touched: list[Message] = []
        self.now = 0.0

    def receive(self, at: float) -> Message:
        message = Message(b"%016d" % len(self.in_flight), 0, 1, b"x", self)
        self.in_flight[message] = at
        return message

    def touch(self, message: Message) -> None:
        del self.in_flight[message]
        self.in_flight[message] = self.now
        self.touched.append(message)


@pytest.fixture
def held() -> Held:
    return Held()


def look(held: Held, keeper: LeaseKeeper, now: float, running: dict[Message, float] | None = None) -> list[Message]:
    held.now = now
    return keeper.keep(lambda: running or {}, now)


def test_a_lease_is_touched_after_a_third_and_not_before(held: Held) -> None:
    message, keeper = held.receive(at=0), LeaseKeeper(held, timeout=300)
    look(held, keeper, 19.9, {message: 0})
    assert held.touched == []
    look(held, keeper, 20.1, {message: 0})
    assert held.touched == [message]
    look(held, keeper, 40.0, {message: 0})
    assert held.touched == [message]


def test_only_the_front_is_looked_at(held: Held) -> None:
    old, young = held.receive(at=0), held.receive(at=15)
    look(held, LeaseKeeper(held, timeout=300), 21, {old: 0, young: 15})
    assert held.touched == [old]
    assert list(held.in_flight) == [young, old]


def test_a_lease_that_turns_out_to_be_over_when_it_is_touched_hides_no_other(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    over, fine = held.receive(at=0), held.receive(at=0)
    touch = held.touch

    def touch_in_time(message: Message) -> None:
        if message is over:
            del held.in_flight[message]
            raise AlreadySettled("its lease is over")
        touch(message)

    monkeypatch.setattr(held, "touch", touch_in_time)
    assert look(held, LeaseKeeper(held, timeout=300), 30, {over: 0, fine: 0}) == []
    assert held.touched == [fine]


def test_nothing_due_asks_nothing(held: Held) -> None:
    held.receive(at=0)
    keeper = LeaseKeeper(held, timeout=300)
    assert keeper.keep(lambda: pytest.fail("nobody needed to know what runs"), 10.0) == []


def test_a_call_over_its_timeout_is_not_touched_any_more_and_does_not_hide_the_others(held: Held) -> None:
    late, fine = held.receive(at=0), held.receive(at=0)
    assert look(held, LeaseKeeper(held, timeout=30), 40, {late: 5, fine: 20}) == []
    assert held.touched == [fine]


def test_the_timeout_counts_from_the_start_of_the_call_not_from_receipt(held: Held) -> None:
    message, keeper = held.receive(at=0), LeaseKeeper(held, timeout=30)
    for now in (20, 40, 60, 80):
        assert look(held, keeper, now) == []
    look(held, keeper, 100, {message: 90})
    assert held.touched == [message] * 5


def test_what_waits_is_touched_until_its_call_could_not_end_within_the_longest_lease(held: Held) -> None:
    message, keeper = held.receive(at=0), LeaseKeeper(held, timeout=840)
    for now in (20, 40, 59):
        assert look(held, keeper, now) == []
    assert look(held, keeper, 61) == [message]


def test_a_timeout_as_long_as_the_longest_lease_may_still_wait_a_third_of_a_lease(held: Held) -> None:
    message, keeper = held.receive(at=0), LeaseKeeper(held, timeout=MAX_LEASE)
    assert look(held, keeper, 19) == []
    assert look(held, keeper, 21) == [message]


def test_what_ran_out_while_the_hub_was_blocked_is_not_started(held: Held) -> None:
    message = held.receive(at=0)
    assert look(held, LeaseKeeper(held, timeout=30), 61) == [message]
    assert held.touched == []


def test_where_touching_gains_nothing_nothing_is_touched_and_what_waits_is_given_back_all_the_same(held: Held) -> None:
    held.limits = Limits(LEASE, LEASE, 2500)
    runs, waits, keeper = held.receive(at=0), held.receive(at=0), LeaseKeeper(held, timeout=30)
    assert look(held, keeper, 21, {runs: 0}) == []
    assert look(held, keeper, 31, {runs: 0}) == [waits]
    assert held.touched == []


def test_settled_messages_are_forgotten(held: Held) -> None:
    first, second, keeper = held.receive(at=0), held.receive(at=0), LeaseKeeper(held, timeout=300)
    look(held, keeper, 21, {first: 0, second: 0})
    del held.in_flight[first]
    look(held, keeper, 42, {second: 0})
    assert list(keeper._received) == [second]


@pytest.mark.parametrize(
    ("max_lease", "timeout", "calls"),
    [(900.0, 20.0, 44), (34.0, 17.0, 1), (33.9, 17.0, 0), (900.0, 900.0, 0), (10.0, 20.0, 0), (math.inf, 20.0, math.inf)],
)
def test_as_many_calls_go_before_a_message_as_its_longest_lease_has_room_for_beside_its_own(
    max_lease: float, timeout: float, calls: float
) -> None:
    assert calls_ahead(Limits(lease=10.0, max_lease=max_lease, max_grant=1), timeout) == calls
