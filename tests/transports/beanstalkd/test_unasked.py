"""When the statistics of jobs that were delivered without asking are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from framework.transports.beanstalkd import unasked
from framework.transports.beanstalkd.reserved_job import ReservedJob
from framework.transports.beanstalkd.unasked import Unasked
from tests.transports.ruled import Clock, Timer

LATER = 1.0


class Case:
    """``asked``: with how long each had been here."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.in_flight: set[Any] = set()
        self.asked: dict[int, float] = {}
        self.looks = 0

    def job(self, number: int) -> ReservedJob:
        made = ReservedJob(number, b"x", None, self.clock.now)  # type: ignore[arg-type]
        made.message = number  # type: ignore[assignment]  # its place in ``in_flight`` is all that is looked at
        return made

    def ask(self, jobs: list[ReservedJob]) -> None:
        for one in jobs:
            one.asked = True
            self.asked[one.number] = self.clock.now - one.at

    def guarded(self, work: Callable[[], None]) -> None:
        self.looks += 1
        work()


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = Case()
    monkeypatch.setattr(unasked, "monotonic", made.clock)
    monkeypatch.setattr(unasked, "Countdown", Timer)
    monkeypatch.setattr(unasked, "LATER", LATER)
    made.unasked = Unasked(made.in_flight, made.ask, made.guarded)
    made.timer = made.unasked._timer
    return made


def test_each_is_asked_about_once_it_was_in_flight_for_a_while_though_others_come_all_the_time(case: Any) -> None:
    over_at = float("inf")
    for number in range(80):
        case.in_flight.add(number)
        was_active = case.timer.active
        case.unasked.add([case.job(number)])
        assert case.timer.active
        over_at = over_at if was_active else case.clock.now + case.timer.seconds
        case.clock.now += LATER / 8
        if case.clock.now >= over_at:
            case.timer.is_over()
            over_at = case.clock.now + case.timer.seconds
    assert list(case.asked) == list(range(len(case.asked)))
    assert 60 <= len(case.asked) < 80
    assert LATER <= min(case.asked.values()) < max(case.asked.values()) < 2.5 * LATER
    assert case.looks <= 10


def test_those_that_are_settled_or_known_by_then_are_not_asked_about(case: Any) -> None:
    jobs = [case.job(number) for number in range(4)]
    case.in_flight.update({0, 1, 2})
    jobs[0].asked = True
    case.unasked.add(jobs)
    case.in_flight.remove(1)
    case.clock.now += LATER
    case.timer.is_over()
    assert (list(case.asked), case.timer.active) == ([2], False)


def test_where_nothing_is_to_be_asked_about_nobody_looks_and_nobody_does_of_what_is_closed(case: Any) -> None:
    case.unasked.add([case.job(1)])
    assert not case.timer.active
    case.in_flight.add(2)
    case.unasked.add([case.job(2)])
    assert (case.timer.active, case.timer.seconds) == (True, LATER)
    case.unasked.close()
    assert (case.timer.active, case.unasked._jobs) == (False, [])
