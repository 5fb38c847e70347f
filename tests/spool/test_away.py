"""One of several collectors that was away: what it holds may be others' by now, and they may have landed it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from framework.message import Batch, Message
from framework.spool import Spool, SpoolError
from framework.transports.contract import Limits
from tests.origins import Source
from tests.spool.rows import MakeBatch, ids


@dataclass(eq=False)
class Held(Source):
    """A connection by which messages are held, each since then."""

    limits: Limits = field(default_factory=lambda: Limits(lease=60.0, max_lease=900.0, max_grant=1))
    in_flight: dict[Message, float] = field(default_factory=dict)


def held(batch: Batch, ago: float | None) -> Batch:
    """The second for so many seconds, the others since now; None: it was given back."""
    origin, now = Held(), time.monotonic()
    some = [Message(one.id, one.timestamp, one.attempts, one.body, origin) for one in batch]
    origin.in_flight = dict.fromkeys(some, now)
    if ago is None:
        del origin.in_flight[some[1]]
    else:
        origin.in_flight[some[1]] = now - ago
    return Batch(some)


@pytest.mark.parametrize(("ago", "lands"), [(0.0, True), (40.0, True), (61.0, False), (None, False)])
def test_what_may_be_others_by_now_is_not_landed_and_comes_again(
    tmp_path: Path, batch: MakeBatch, ago: float | None, lands: bool
) -> None:
    """What others landed while it was away, and a query has read, is deleted: nobody knows the ids."""
    with Spool(tmp_path, shared=True) as spool:
        assert spool.land(batch(3, 6)) == 3
        if lands:
            assert spool.land(held(batch(0, 3), ago)) == 3
        else:
            words = "the leases of 1 of 3 messages are over, so that others may have landed them: none of the batch is landed"
            with pytest.raises(SpoolError, match=words):
                spool.land(held(batch(0, 3), ago))
        assert len(ids(spool)) == (6 if lands else 3)


@pytest.mark.parametrize("ago", [61.0, None])
def test_whoever_is_alone_knows_what_it_has_landed(tmp_path: Path, batch: MakeBatch, ago: float | None) -> None:
    with Spool(tmp_path) as spool:
        assert [spool.land(held(batch(0, 3), ago)) for _ in range(2)] == [3, 0]


def test_in_a_slot_process_it_is_the_time_of_the_call_that_is_over(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [5.0]
    monkeypatch.setattr(Message, "seconds_left", property(lambda _: left[-1]))
    with Spool(tmp_path, shared=True) as spool:
        assert spool.land(batch(0, 3)) == 3
        left.append(-0.1)
        with pytest.raises(SpoolError, match="the leases of 3 of 3 messages are over"):
            spool.land(batch(3, 6))
        assert len(ids(spool)) == 3
