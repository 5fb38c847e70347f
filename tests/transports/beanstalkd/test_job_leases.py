"""Of jobs with leases of their own, for how long the engine takes each of them to be ours. No server."""

from __future__ import annotations

import math
from typing import Any

from framework.transports.beanstalkd.job_leases import MAX_GRANT, JobLeases
from framework.transports.beanstalkd.reserved_job import ReservedJob
from framework.transports.contract import Limits


def job(ttr: int) -> ReservedJob:
    unused: Any = None
    made = ReservedJob(1, b"", unused, 0.0)
    made.ttr = ttr
    return made


def test_it_is_the_shortest_and_a_longer_one_where_no_other_job_is_there() -> None:
    in_flight: list[Any] = []
    changes: list[Limits] = []
    leases = JobLeases(60.0, in_flight, changes.append)

    def changed() -> list[float]:
        found = [one.lease for one in changes]
        assert {(one.max_lease, one.max_grant) for one in changes} <= {(math.inf, MAX_GRANT)}
        changes.clear()
        return found

    for ttr, alone, lease in ((60, True, []), (300, True, [300.0]), (9, False, [9.0]), (100, False, []), (100, True, [100.0])):
        leases.came(ttr, alone=alone)
        assert changed() == lease
    in_flight.append("another")
    for ttr, lease in ((300, []), (100, []), (99, [99.0])):
        leases.came(ttr, alone=True)
        assert changed() == lease
    for ttrs, lease in (((), []), ((50, 300), []), ((99, 300), []), ((0, 200, 300), [200.0]), ((0, 0), [])):
        leases.look([job(ttr) for ttr in ttrs])
        assert changed() == lease, "what is not known yet counts for nothing"
