"""What was counted when it was handed over, and was in vain, is taken back: a ledger adds up whatever a socket did not take."""

from __future__ import annotations

from typing import Any

import pytest

from framework.engine.ledger import Ledger
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
    Settling(tally, desk=unused, bells=unused, intake=unused, demand=unused, room=unused).cut(lines)
    assert (tally.finished, tally.requeued, tally.lease_lost) == left
