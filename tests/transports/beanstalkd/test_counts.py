"""How many jobs are a connection's before they are delivered: what its grant must leave room for. Without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from framework.transports.beanstalkd.attempts import Attempts
from framework.transports.beanstalkd.poller import Poll
from framework.transports.beanstalkd.reserved_job import ReservedJob
from framework.transports.beanstalkd.wire import JobState


def test_jobs_are_counted_from_their_reserve_until_they_are_delivered() -> None:
    """Of some nothing is known yet, others have arrived: both are ours."""
    freed: list[Any] = []
    owner: Any = SimpleNamespace(
        message=lambda *_: SimpleNamespace(), lease=lambda _: None, asked=lambda _: None, free=freed.append
    )
    attempts, poll, keeper = Attempts(owner), Poll(4), SimpleNamespace()
    jobs = [ReservedJob(number, b"x", keeper, 0.0) for number in (1, 2, 3, 4)]  # type: ignore[arg-type]
    counts = []
    for job in jobs[:3]:
        attempts.reserved(poll, job)
        counts.append(attempts.undelivered)
    attempts.known(jobs[0], JobState(priority=1, age=1, delay=0, ttr=60, reserves=1))
    counts.append(attempts.undelivered)  # it vouches for those behind it: all three have arrived
    attempts.got(jobs[3])
    counts.append(attempts.undelivered)
    assert (counts, len(attempts.arrived)) == ([1, 2, 3, 3, 4], 3)
    attempts.known(jobs[3], None)
    assert (attempts.undelivered, freed) == (3, [jobs[3]])
    attempts.arrived.clear()
    assert attempts.undelivered == 0
