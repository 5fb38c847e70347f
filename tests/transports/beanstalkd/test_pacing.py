"""How many more jobs are asked for, and on which connection; what waits for room in a server's log. No server, and no time."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from framework.engine.ledger import Ledger
from framework.transports.beanstalkd import log_space, pacing
from framework.transports.beanstalkd.log_space import WAIT, LogSpace
from framework.transports.beanstalkd.pacing import Pacing
from framework.transports.beanstalkd.reserved_job import ReservedJob
from framework.transports.beanstalkd.settling import Settling
from framework.transports.beanstalkd.waiters import Waiter
from tests.transports.ruled import Clock, Timer


class Case:
    """A grant of 100 to a connection that has nothing yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pacing, "Countdown", Timer)
        monkeypatch.setattr(pacing, "monotonic", clock := Clock())
        self.clock = clock
        self.asked: list[Any] = []
        self.owner = SimpleNamespace(granted=100, ours=0)
        self.poller = SimpleNamespace(dry=False, reach=16, polling=0, poll=self.asked.append)
        self.waiters = SimpleNamespace(
            waiting=None, promised=0, wait=lambda: self.asked.append("wait"), wait_no_more=lambda: self.asked.append("no more")
        )
        parts: Any = (self.owner, self.poller, self.waiters)
        self.pacing = Pacing(*parts, lambda work: work())
        self.timer: Any = self.pacing._patience

    def follow(self) -> list[Any]:
        self.asked.clear()
        self.pacing.follow()
        return list(self.asked)

    def is_over(self) -> list[Any]:
        self.asked.clear()
        self.timer.is_over()
        return list(self.asked)


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(monkeypatch)


@pytest.mark.parametrize(
    ("granted", "ours", "polling", "promised", "reach", "asked"),
    [
        (100, 0, 0, 0, 16, [16]),
        (100, 90, 0, 0, 16, [10]),
        (100, 80, 10, 0, 16, []),
        (100, 66, 9, 0, 64, [25]),
        (100, 67, 9, 0, 64, []),
        (1000, 900, 84, 0, 16, [16]),
        (1000, 901, 84, 0, 16, []),
        (100, 80, 0, 15, 16, [5]),
        (10, 10, 0, 0, 16, []),
        (10, 12, 0, 0, 16, []),
        (1, 0, 0, 0, 16, [1]),
        (0, 0, 0, 0, 16, []),
    ],
)
def test_few_large_polls_are_made_while_there_are_jobs(  # noqa: PLR0917
    granted: int, ours: int, polling: int, promised: int, reach: int, asked: list[int], case: Case
) -> None:
    """Each has a first job that must be asked for."""
    case.owner.granted, case.owner.ours = granted, ours
    case.poller.polling, case.poller.reach, case.waiters.promised = polling, reach, promised
    assert case.follow() == asked
    case.poller.dry = True
    assert case.follow() == ["wait"] * (granted > ours + polling + promised), "where there are none, one waits"
    assert not case.timer.active


@pytest.mark.parametrize(("granted", "relieved"), [(0, True), (1, False)])
def test_one_that_waits_for_more_than_is_granted_is_relieved_at_once_where_nothing_is(
    granted: int, relieved: bool, case: Case
) -> None:
    case.owner.granted, case.owner.ours, case.waiters.promised = granted, granted, 1
    assert (case.follow(), case.timer.active) == ([], False), "none waits"
    case.waiters.waiting = SimpleNamespace(since=case.clock.now)
    case.waiters.promised = 0
    assert (case.follow(), case.timer.active) == ([], False), "it waits for no more than that"
    case.waiters.promised = 1
    assert (case.follow(), case.timer.active) == (["no more"] * relieved, not relieved)
    assert (case.timer.seconds, case.timer.starts) == (pacing._PATIENCE, 1 - relieved)
    assert (case.follow(), case.timer.starts) == (["no more"] * relieved, 1 - relieved), "patience is not begun anew"
    case.pacing.close()
    assert not case.timer.active


def test_whether_it_goes_on_is_judged_when_it_has_waited_for_long(case: Case) -> None:
    case.owner.granted = case.owner.ours = case.waiters.promised = 1
    case.waiters.waiting = SimpleNamespace(since=case.clock.now)
    case.follow()
    assert (case.is_over(), case.timer.active) == ([], True), "it has waited for a moment only"
    case.clock.now += 2 * pacing._PATIENCE
    assert (case.is_over(), case.timer.active) == (["no more"], False)
    case.follow()
    case.owner.ours = 0
    assert (case.is_over(), case.timer.active) == ([], False), "a job was settled meanwhile"
    case.owner.ours = 1
    case.follow()
    case.waiters.waiting = None
    assert (case.is_over(), case.timer.active) == ([], False), "it has got its job"


# --- what waits for room in a log ----------------------------------------------------------------------------


class Loop:
    """It makes timers that a test rules."""

    def __init__(self) -> None:
        self.made: list[Timer] = []

    def timer(self, seconds: float) -> Timer:
        self.made.append(Timer(self, seconds))
        return self.made[-1]


def job(number: int, keeper: Any = None, verb: str = "release") -> ReservedJob:
    made = ReservedJob(number, b"", keeper, 0.0)
    made.priority, made.verb, made.delay = 5, verb, 7
    made.message = number  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(("lease", "seconds"), [(60.0, WAIT), (4 * WAIT, WAIT), (2.0, 0.5)])
def test_all_that_failed_is_kept_until_the_first_was_for_long_enough_or_there_is_room(
    lease: float, seconds: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody touches it meanwhile: that is a fourth of its lease at most."""
    caplog.set_level(logging.INFO)
    loop = Loop()
    monkeypatch.setattr(log_space, "get_hub", lambda: SimpleNamespace(loop=loop))
    let_go: list[Any] = []
    room = LogSpace("a:11300", let_go.append, lambda work: work())
    jobs = [job(number) for number in range(5)]
    room.keep(jobs[0], lease)
    room.keep(jobs[1], 0.001)
    [former, timer] = loop.made
    assert former.closed, "the loop forgets it"
    assert (timer.seconds, timer.starts, list(room.kept)) == (seconds, 1, jobs[:2])
    timer.is_over()
    assert (let_go, room.kept, timer.active) == ([jobs[:2]], {}, False)
    room.found()
    assert caplog.messages == [], "there was room all the time"
    room.none(7)
    room.keep(jobs[2], lease)
    assert (room.full, len(loop.made), loop.made[-1].active) == (True, 3, True)
    room.found()
    room.found()
    assert (room.full, let_go[1:], loop.made[-1].active) == (False, [[jobs[2]]], False)
    assert [line.split(" ", 2)[2][:32] for line in caplog.messages] == [
        "has no room in its log to releas", "has room in its log again"
    ]  # fmt: skip
    room.release()
    assert len(let_go) == 2, "nothing is kept"
    room.keep(jobs[3], lease)
    room.close()
    assert not loop.made[-1].active


# --- how jobs ended ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dry", "room", "again"), [(True, 2, [True, True, False]), (True, 0, [False] * 3), (False, 2, [False] * 3)]
)
@pytest.mark.parametrize("full", [True, False])
def test_how_each_job_ended_is_told_by_who_keeps_it_and_counted(dry: bool, room: int, again: list[bool], full: bool) -> None:
    """A waiter waits again in the same send, while there is room and nothing for the poller."""
    told: list[Any] = []

    def settle(keeper: Any, one: ReservedJob, *, again: bool) -> bool:
        told.append((one.number, again))
        return again

    poller: Any = SimpleNamespace(
        dry=dry, settle=lambda one: told.append(one.number), finish=lambda those: told.append([one.number for one in those])
    )
    waiter = object.__new__(Waiter)
    unused: Any = None
    others: Any = {"waiters": SimpleNamespace(settle=settle), "pacing": SimpleNamespace(room=room)}
    space: Any = SimpleNamespace(full=full, kept={})
    settling = Settling(tally := Ledger(), poller=poller, attempts=unused, log_space=space, **others)
    settling.settled = [
        job(1, poller, "delete"), job(2, waiter, "delete"), job(3, poller), job(4, poller, "delete"), job(5, waiter, "bury"),
        job(6, waiter),
    ]  # fmt: skip
    some = list(settling.settled)
    settling.tell()
    assert told == [[1, 4], (2, again[0]), 3, (5, again[1]), (6, again[2])]
    assert (tally.finished, tally.requeued, len(settling)) == (4, 2, 0)
    assert [some[at].delay for at in (2, 5)] == [0 if full else 7] * 2, "at once it is not logged"
    settling.refused("release")
    settling.refused("delete")
    settling.refused("bury")
    assert (tally.finished, tally.requeued) == (2, 1)
    told.clear()
    settling.settled = [job(7, waiter, "delete")]
    settling.tell()
    assert (told, tally.finished) == ([(7, again[0])], 3), "the poller is told nothing"
