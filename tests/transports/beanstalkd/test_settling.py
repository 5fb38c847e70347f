"""What was counted when it was handed over, and was in vain, is taken back: a ledger adds up whatever a socket did not take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from framework.engine.ledger import Ledger
from framework.transports.beanstalkd.log_space import LogSpace
from framework.transports.beanstalkd.reserved_job import ReservedJob
from framework.transports.beanstalkd.settling import Settling


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ([], (2, 2, 0)),
        ([b"delete 1", b"bury 2 0"], (0, 2, 2)),
        ([b"release 3 0 0", b"release 4 0 5"], (2, 0, 2)),
        ([b"delete 1", b"touch 9", b"release 3 0 0", b"reserve-with-timeout 0"], (1, 1, 2)),
    ],
)
def test_what_the_socket_did_not_take_whole_is_a_lost_lease(lines: list[bytes], left: tuple[int, int, int]) -> None:
    tally = Ledger()
    tally.received, tally.finished, tally.requeued = 4, 2, 2
    unused: Any = None
    Settling(tally, poller=unused, waiters=unused, attempts=unused, pacing=unused, log_space=unused).cut(lines)
    assert (tally.finished, tally.requeued, tally.lease_lost) == left


def test_a_job_whose_priority_the_server_tells_after_it_was_kept_long_enough_is_released_then() -> None:
    """Nobody would think of it again: its lease would run out."""
    unused: Any = None

    def let_go(jobs: list[ReservedJob]) -> None:
        settling.kept_long_enough(jobs)

    room = LogSpace("node", let_go, lambda work: work())
    settling = Settling(Ledger(), poller=unused, waiters=unused, attempts=unused, pacing=unused, log_space=room)
    job = ReservedJob(1, b"", unused, 0.0)
    job.asked, job.verb = True, "release"
    room.keep(job, 60.0)
    settling.when_known(job)
    room.release()
    assert (settling.settled, list(settling.late)) == ([], [job]), "its priority is not known yet"
    job.priority = 5
    assert settling.known(job)
    assert (settling.settled, len(settling)) == ([job], 1)


@pytest.mark.parametrize("priority", [0, 5])
def test_a_job_that_was_kept_for_room_is_told_when_there_is_some_and_counts_as_lost_when_its_connection_ends(
    priority: int,
) -> None:
    unused: Any = None
    kept_long_enough: list[ReservedJob] = []
    room = LogSpace("node", kept_long_enough.extend, lambda work: work())
    settling = Settling(tally := Ledger(), poller=unused, waiters=unused, attempts=unused, pacing=unused, log_space=room)
    jobs = [ReservedJob(number, b"", unused, 0.0) for number in range(4)]
    for job in jobs:
        job.priority, job.verb = priority, "release"
    for job in jobs[:3]:
        room.keep(job, 60.0)
    for job in jobs:
        settling.when_known(job)
    assert (settling.settled, list(settling.late), len(settling)) == ([jobs[3]], jobs[:3], 4)
    settling.lose(jobs[0])
    assert (tally.lease_lost, len(settling), jobs[0] in room.kept) == (1, 3, False)
    settling.lose(jobs[0])
    settling.lose(jobs[3])
    assert (tally.lease_lost, len(settling)) == (2, 2)
    room.release()
    settling.kept_long_enough(kept_long_enough)
    assert (settling.settled, len(settling)) == (jobs[1:3], 2)
    settling.clear()
    assert (tally.lease_lost, len(settling)) == (4, 0)


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_a_job_is_given_back_with_its_priority_once_that_is_known_and_nobody_keeps_it(asked: bool, kept: bool) -> None:
    unused: Any = None
    attempts: Any = SimpleNamespace(asking=[])
    room = LogSpace("node", unused, lambda work: work())
    settling = Settling(tally := Ledger(), poller=unused, waiters=unused, attempts=attempts, pacing=unused, log_space=room)
    job, stranger = (ReservedJob(number, b"", unused, 0.0) for number in (1, 2))
    job.asked, job.verb = asked, "release"
    if kept:
        room.keep(job, 60.0)
    settling.when_known(job)
    assert (settling.settled, list(settling.late), attempts.asking) == ([], [job], [job] * (not asked))
    job.priority = stranger.priority = 5
    settling.kept_long_enough([stranger])
    assert settling.known(stranger)
    assert settling.known(job)
    assert (settling.settled, list(settling.late)) == (([], [job]) if kept else ([job], []))
    settling.clear()
    assert (len(settling), tally.lease_lost) == (0, 1)
    settling.when_known(job)
    assert settling.settled == [job] * (not kept)
    room.close()


def test_a_job_that_the_server_does_not_know_is_told_no_more() -> None:
    unused: Any = None
    room = LogSpace("node", unused, lambda work: work())
    settling = Settling(Ledger(), poller=unused, waiters=unused, attempts=unused, pacing=unused, log_space=room)
    job = ReservedJob(1, b"", unused, 0.0)
    job.asked, job.verb = True, "release"
    assert settling.known(job), "nothing was to be told of it"
    settling.when_known(job)
    assert not settling.known(job)
    assert (settling.settled, len(settling)) == ([], 0)
