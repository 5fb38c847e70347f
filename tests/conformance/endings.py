"""What our own connections make of words that come too late. The contract leaves it open; the engine says them now and then."""

from __future__ import annotations

import pytest

from framework.testing.conformance import Bench
from framework.testing.conformance.bench import Cases
from framework.testing.conformance.contract import QUIET


class Endings(Cases):
    """For each transport of this house."""

    @pytest.mark.parametrize("end", ["drain", "close"])
    def test_one_that_ends_heeds_no_grant_and_may_be_told_to_end_as_often_as_anybody_likes(self, bench: Bench, end: str) -> None:
        held = bench.hold(grant=1)
        bench.publish(b"1")
        bench.until(lambda: held.taken)
        connection, receiver = held.connection, held.receiver
        for said in (end, end, "close", "close"):
            getattr(connection, said)()
            connection.grant(3)
            assert connection.granted == 0
            bench.until(lambda said=said: receiver.closings if said == "close" else receiver.drains)  # type: ignore[misc]
            connection.grant(3)
            connection.drain()
            assert (connection.granted, connection.exposed) == (0, len(connection.in_flight))
        bench.stays(lambda: (len(held.taken), receiver.closings) == (1, 1), QUIET)
