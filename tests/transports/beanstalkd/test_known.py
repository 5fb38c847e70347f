"""What is known of a job before it is delivered, and which of those in flight are touched in the hub's place; no server."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from framework.message import Message
from framework.transports.beanstalkd import attempts, wire
from framework.transports.beanstalkd.attempts import Attempts
from framework.transports.beanstalkd.poller import Poll
from framework.transports.beanstalkd.rescue import AHEAD, Rescue, snapshot
from framework.transports.beanstalkd.reserved_job import ReservedJob
from framework.transports.contract import TOUCH_AT
from tests.transports.beanstalkd.sockets import Owner

BORN = 1_700_000_000_000_000_000


class Told(Owner):
    def message(self, job: ReservedJob, times: int, born: int) -> Any:
        return SimpleNamespace(number=job.number, attempts=times, timestamp=born)


@pytest.fixture
def owner() -> Told:
    return Told()


@pytest.fixture
def some(owner: Told, monkeypatch: pytest.MonkeyPatch) -> Attempts:
    monkeypatch.setattr(attempts, "time_ns", lambda: BORN + 20_000_000_000)
    return Attempts(owner)


def state(reserves: int = 1, *, delay: int = 0, priority: int = 3) -> wire.JobState:
    return wire.JobState(priority=priority, age=20, delay=delay, ttr=60, reserves=reserves)


def came(some: Attempts, poll: Poll, *numbers: int) -> list[ReservedJob]:
    jobs = [ReservedJob(number, b"", SimpleNamespace(), 0.0) for number in numbers]  # type: ignore[arg-type]
    for job in jobs:
        some.reserved(poll, job)
    return jobs


def arrived(some: Attempts) -> list[tuple[int, int]]:
    """The number and the attempts of each that can be delivered since the last time; all were put at the same time."""
    found: list[Any] = [job.message for job in some.arrived]
    some.arrived.clear()
    assert {one.timestamp for one in found} <= {BORN}
    return [(one.number, one.attempts) for one in found]


def asking(some: Attempts) -> list[int]:
    """Who is asked for since the last time."""
    found = [job.number for job in some.asking]
    some.asking.clear()
    return found


def test_one_that_was_never_had_before_vouches_for_those_behind_it(some: Attempts, owner: Told) -> None:
    poll = Poll(6)
    first, *_ = came(some, poll, 5, 6, 7)
    assert (asking(some), arrived(some), some.undelivered) == ([5], [], 3)
    some.known(first, state())
    assert (arrived(some), some.undelivered) == ([(5, 1), (6, 1), (7, 1)], 0)
    assert (first.priority, first.ttr) == (3, 60)
    assert owner.told == [("lease", 60), ("asked", first)]
    came(some, poll, 8, 4)
    assert (arrived(some), asking(some), some.undelivered) == ([(8, 1)], [4], 1), "4 may have been had before"


def test_it_vouches_for_none_with_a_lower_id_and_for_none_where_priorities_differ(some: Attempts) -> None:
    """Of those that came before it was known as well."""
    poll = Poll(4)
    first, *_ = came(some, poll, 5, 6, 4)
    some.known(first, state())
    assert poll.waiting == [], "for nothing any more"
    assert (arrived(some), asking(some), some.undelivered) == ([(5, 1), (6, 1)], [5, 4], 1)
    first, *_ = came(some, Poll(3), 7, 8)
    some.known(first, state(priority=9))
    assert (arrived(some), asking(some)) == ([(7, 1)], [7, 8])


@pytest.mark.parametrize("known", [state(2), state(delay=1), None])
def test_behind_any_other_all_are_asked_for(some: Attempts, owner: Told, known: wire.JobState | None) -> None:
    poll = Poll(3)
    first, behind, last = came(some, poll, 5, 6, 4)
    asking(some)
    some.known(first, known)
    assert arrived(some) == ([] if known is None else [(5, known.reserves)])
    assert ([one[0] for one in owner.told if one[0] == "free"], some.undelivered) == (["free"] * (known is None), 2)
    came(some, poll, 7)
    assert (asking(some), arrived(some), some.undelivered) == ([6, 4, 7], [], 3)
    some.known(behind, state(3))
    some.known(last, state(4))
    assert arrived(some) == [(6, 3), (4, 4)]


def test_once_two_priorities_were_seen_nobody_vouches_for_another(some: Attempts) -> None:
    waiting, again = Poll(2), Poll(2)
    (first, _), (other, _) = came(some, waiting, 5, 6), came(some, again, 7, 8)
    asking(some)
    some.known(first, state(priority=3))
    some.known(other, state(priority=4))
    assert (arrived(some), asking(some)) == ([(5, 1), (6, 1), (7, 1)], [8])
    came(some, waiting, 9)
    assert asking(some) == [9]


def test_what_a_waiter_got_is_asked_for_and_one_whose_connection_ended_is_not_delivered(some: Attempts, owner: Told) -> None:
    job, lost = (ReservedJob(number, b"", SimpleNamespace(), 0.0) for number in (5, 6))  # type: ignore[arg-type]
    some.got(job)
    some.got(lost)
    assert (asking(some), some.undelivered) == ([5, 6], 2)
    lost.verb = "lost"
    some.known(lost, state())
    assert (some.undelivered, owner.told, arrived(some)) == (1, [], [])
    some.known(job, state(2))
    assert (arrived(some), some.undelivered) == ([(5, 2)], 0)


@pytest.mark.parametrize("known", [state(4), None])
def test_what_is_asked_of_one_in_flight_mends_what_its_message_says(some: Attempts, owner: Told, known: Any) -> None:
    job = ReservedJob(5, b"", SimpleNamespace(), 0.0)  # type: ignore[arg-type]
    job.message = Message(b"5", 1, 1, b"", SimpleNamespace())
    some.known(job, known)
    assert (job.message.attempts, job.message.timestamp) == ((4, BORN) if known else (1, 1))
    assert (some.undelivered, arrived(some), owner.told[-1]) == (0, [], ("asked", job))


# -- touched in the hub's place


def test_those_whose_lease_is_a_third_over_are_touched_and_those_of_which_nothing_is_known() -> None:
    keeper, other, lease = object(), object(), 60.0
    messages = {
        name: Message(name.encode(), 0, 1, b"", SimpleNamespace()) for name in ("old", "new", "unknown", "over", "settled")
    }
    jobs: dict[Message, Any] = {
        one: SimpleNamespace(number=name, priority=-1 if name == "unknown" else 3, keeper=other if name == "old" else keeper)
        for name, one in messages.items()
        if name != "settled"
    }
    due = lease * TOUCH_AT - AHEAD
    in_flight = {one: 1000.0 if name in {"new", "unknown"} else 1000.0 - due for name, one in messages.items()}
    rescue = Rescue()

    def touched(now: float) -> dict[Any, list[Any]]:
        found: Any = rescue.touches(in_flight, jobs, lease, now, {messages["over"]})
        return {"keeper" if by is keeper else "other": [one[0] for one in each] for by, each in found.items()}

    both = {"other": ["old"], "keeper": ["unknown"]}
    assert touched(999.9) == {"keeper": ["unknown"]}
    assert touched(1000.0) == both
    assert rescue.touched == {messages["old"]: 1000.0, messages["unknown"]: 1000.0}
    backwards = Rescue().touches(dict(reversed(in_flight.items())), jobs, lease, 1000.0, {messages["over"]})
    assert sorted(one[0] for each in backwards.values() for one in each) == ["old", "unknown"], "whichever comes first"
    assert touched(1000.0 + due - 0.1) == {"keeper": ["unknown"]}, "it was touched a moment ago, here"
    assert touched(1000.0 + due) == {"other": ["old"], "keeper": ["new", "unknown"]}
    assert list(rescue.touched) == [messages["old"], messages["new"], messages["unknown"]]


def test_what_the_hub_changes_meanwhile_is_looked_at_again() -> None:
    class Changing(list[int]):
        times = 0

        def __iter__(self) -> Iterator[int]:
            self.times += 1
            if self.times < 3:
                raise RuntimeError("dictionary changed size during iteration")
            return super().__iter__()

    assert snapshot(Changing([1, 2])) == [1, 2]


def test_at_the_end_nothing_is_ours_any_more(some: Attempts) -> None:
    poll = Poll(2)
    first, _ = came(some, poll, 5, 6)
    some.known(first, state())
    assert some.undelivered == 2
    came(some, poll, 1)
    some.clear()
    assert (some.arrived, some.asking) == ([], [])
