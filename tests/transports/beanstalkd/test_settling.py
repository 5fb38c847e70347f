"""What was counted when it was handed over, and was in vain, is taken back: a ledger adds up whatever a socket did not take."""

from __future__ import annotations

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
