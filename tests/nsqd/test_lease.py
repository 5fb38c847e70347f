"""Leases of one consumer: they end in their order, and are touched up to what is the most, and no further."""

from __future__ import annotations

import pytest

from framework.nsqd import lease
from framework.nsqd.lease import Leases, Message


class Clock:
    """A clock, and an alarm that rings when it is turned."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.ring = lambda: None
        self.at: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def alarm(self, ring: object) -> Clock:
        self.ring = ring  # type: ignore[assignment]
        return self

    def set(self, when: float) -> None:
        self.at.append(when)

    def cancel(self) -> None:
        self.at = []

    def turn(self, now: float) -> list[float]:
        """When it is to ring next."""
        self.now, self.at = now, []
        self.ring()
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease, "time", clock)
    monkeypatch.setattr(lease, "Alarm", clock.alarm)
    return clock


class Case:
    def __init__(self, **delivered: float) -> None:
        """Messages by name, and when they were delivered; a lease takes 60 s, and 100 s at most."""
        self.ended: list[bytes | None] = []
        self.leases = Leases(60.0, 100.0, self._expired)
        self.named = {name: Message(seq, 0, 1, name.encode(), at, at + 60.0) for seq, (name, at) in enumerate(delivered.items())}
        self.leases.messages = {one.id: one for one in self.named.values()}

    def _expired(self, leases: Leases, message: Message) -> None:
        assert leases is self.leases
        assert message.id not in leases.messages
        self.ended.append(message.body)

    def touch(self, name: str) -> bool:
        return self.leases.touch(self.named[name].id)

    @property
    def held(self) -> list[bytes | None]:
        return [one.body for one in self.leases.messages.values()]


def test_a_touch_reaches_no_further_than_the_most_from_delivery(clock: Clock) -> None:
    case = Case(first=900.0, edge=960.0, early=1000.0)
    assert all(map(case.touch, ("first", "edge", "early")))
    assert not case.leases.touch(b"%016x" % 7)
    assert [one.deadline for one in case.named.values()] == [1000.0, 1060.0, 1060.0]
    assert clock.at == [1000.0, 1060.0, 1060.0]
    assert clock.turn(1000.0) == [1060.0, 1060.0]  # also for those that are watched on their own
    assert case.ended == [b"first"]
    assert clock.turn(1060.0) == []
    assert case.ended == [b"first", b"edge", b"early"]


def test_leases_end_in_their_order_and_not_before_their_time(clock: Clock) -> None:
    case = Case(a=940.0, b=940.5, c=1000.0)
    case.leases.arm()
    assert clock.at == [1000.0]
    assert clock.turn(999.9) == [1000.0]
    assert clock.turn(1000.0) == [1000.5]
    assert clock.turn(1000.6) == [1060.0]
    assert (case.ended, case.held) == ([b"a", b"b"], [b"c"])


def test_a_touched_message_stands_behind_the_others(clock: Clock) -> None:
    case = Case(a=950.0, b=950.0)
    assert case.touch("a")
    assert case.held == [b"b", b"a"]
    assert clock.turn(1010.0) == [1050.0, 1050.0]
    assert (case.ended, case.held) == ([b"b"], [b"a"])


def test_one_at_its_limit_ends_though_others_before_it_go_on(clock: Clock) -> None:
    case = Case(old=901.0, young=1000.0)
    assert case.touch("young")
    assert case.touch("old")
    assert case.held == [b"young", b"old"]
    assert clock.turn(1000.9) == [1060.0, 1001.0]
    assert clock.turn(1001.0) == [1060.0]
    assert (case.ended, case.held) == ([b"old"], [b"young"])


def test_one_at_its_limit_that_was_finished_ends_no_more_and_neither_does_its_next_delivery(clock: Clock) -> None:
    case = Case(old=901.0)
    assert case.touch("old")
    gone = case.leases.messages.pop(case.named["old"].id)
    again = Message(gone.seq, 0, 2, b"again", 1000.0, 1060.0)
    case.leases.messages[again.id] = again
    assert clock.turn(1001.0) == [1060.0]
    assert (case.ended, case.held) == ([], [b"again"])


def test_where_nothing_is_in_flight_nothing_rings(clock: Clock) -> None:
    case = Case()
    case.leases.arm()
    assert clock.at == []


def test_nothing_is_left_of_what_was_emptied(clock: Clock) -> None:
    case = Case(old=901.0, young=1000.0)
    assert case.touch("old")
    case.leases.clear()
    assert clock.at == []
    assert clock.turn(2000.0) == []
    assert (case.ended, case.held) == ([], [])


@pytest.mark.usefixtures("clock")
def test_the_bodies_of_a_consumer_that_is_gone_are_forgotten() -> None:
    case = Case(a=1000.0, b=1000.0)
    case.leases.forget_bodies()
    assert case.held == [None, None]
