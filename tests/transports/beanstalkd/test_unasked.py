"""When the statistics of jobs that were delivered without asking are asked for."""

from __future__ import annotations

import time

import gevent
import pytest

from framework.transports.beanstalkd.reserved_job import ReservedJob
from framework.transports.beanstalkd.unasked import LATER, Unasked


def job(number: int) -> ReservedJob:
    made = ReservedJob(number, b"x", None, time.monotonic())  # type: ignore[arg-type]
    made.message = number  # type: ignore[assignment]  # its place in ``in_flight`` is all that is looked at
    return made


@pytest.fixture
def every():
    """What is in flight, and what was asked for with how long each had been here."""
    in_flight, asked = set(), {}

    def ask(jobs):
        for one in jobs:
            one.asked = True
            asked[one.number] = time.monotonic() - one.at

    made = Unasked(in_flight, ask, lambda work: work())
    yield made, in_flight, asked
    made.close()


def test_each_is_asked_about_once_it_was_in_flight_for_a_while_though_others_come_all_the_time(every):
    made, in_flight, asked = every
    until = time.monotonic() + 8 * LATER
    while time.monotonic() < until:
        number = len(in_flight)
        in_flight.add(number)
        made.add([job(number)])
        gevent.sleep(LATER / 10)
    assert len(asked) > len(in_flight) / 2
    assert min(asked.values()) >= LATER


def test_those_that_are_settled_or_known_by_then_are_not_asked_about(every):
    made, in_flight, asked = every
    jobs = [job(number) for number in range(4)]
    in_flight.update({0, 1, 2})
    jobs[0].asked = True
    made.add(jobs)
    in_flight.remove(1)
    gevent.sleep(3 * LATER)
    assert list(asked) == [2]
