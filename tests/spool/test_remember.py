"""Ids are known for as long as a message may come again, however many were landed since, and also after a restart."""

from __future__ import annotations

import os
import time
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from framework.errors import WrongUse
from framework.spool import Spool, segment, told
from framework.spool import spool as spools
from framework.spool.seen import Seen
from framework.testing.servers import ROOT
from tests.origins import Source
from tests.spool.rows import MakeBatch

NOW = 1_800_000_000.0


def aged(spool: Spool, *seconds: float) -> None:
    """The segments landed so long ago."""
    for one, ago in zip(segment.listing(spool.folder), seconds, strict=True):
        os.utime(one.path, (NOW - ago, NOW - ago))


def test_what_came_within_the_time_is_known_however_many_came_since() -> None:
    seen = Seen(window=10, seconds=90.0)
    for second in range(0, 400):
        seen.update([("n", "t", b"%d %d" % (second, n)) for n in range(50)], at=NOW + second)
    assert all(("n", "t", b"%d 0" % second) in seen for second in range(310, 400))
    assert ("n", "t", b"200 0") not in seen, "memory has an end"


@pytest.mark.parametrize("together", [1, 4, 30])
def test_as_many_as_the_window_are_known_however_quickly_they_come(together: int) -> None:
    seen, ids = Seen(window=30, seconds=0.0), [("n", "t", b"%d" % n) for n in range(300)]
    for at in range(0, 300, together):
        seen.update(ids[at : at + together], at=NOW)
        assert all(one in seen for one in ids[max(0, at + together - 30) : at + together])


def test_a_clock_that_goes_back_forgets_nothing_at_once() -> None:
    seen = Seen(window=1, seconds=90.0)
    seen.update([("n", "t", b"before")], at=NOW)
    for n in range(100):
        seen.update([("n", "t", b"%d" % n)], at=NOW - 86400 + n / 10)
    assert ("n", "t", b"before") in seen


def test_a_storage_whose_clock_is_a_year_ahead_fills_no_memory() -> None:
    """A restart learns ids by the storage's clock, and new ones come by this machine's."""
    seen = Seen(window=10, seconds=90.0)
    seen.update([("n", "t", b"before")], at=NOW + 365 * 86400)
    for second in range(400):
        seen.update([("n", "t", b"%d %d" % (second, n)) for n in range(50)], at=NOW + second)
    assert ("n", "t", b"before") not in seen
    assert all(("n", "t", b"%d 0" % second) in seen for second in range(310, 400))


def test_a_restart_learns_the_ids_of_the_time_beyond_the_window(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path, window=1, remember=60) as spool:
        for n in range(0, 50, 10):
            spool.land(batch(n, n + 10))
        aged(spool, 200, 90, 50, 20, 0)
    with Spool(tmp_path, window=1, remember=60) as again:
        assert again.land(batch(20, 50)) == 0
        assert again.land(batch(0, 10)) == 10, "of long ago"


def test_a_query_that_deletes_leaves_what_the_collector_needs(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path, window=1, remember=60) as spool:
        for n in range(0, 50, 10):
            spool.land(batch(n, n + 10))
        aged(spool, 200, 90, 50, 20, 0)
        needed = told.told(spool.folder, told.REMEMBER)
        assert needed == 60
        assert segment.trim(spool.folder, before=100, keep_rows=1, keep_seconds=needed) == 2
        assert [one.number for one in segment.listing(spool.folder)] == [3, 4, 5]


def test_what_may_be_kept_for_ids_has_an_end_in_the_limit_of_the_spool(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as spool:
        for n in range(5):
            spool.land(batch(n, n + 1))
        one = segment.listing(spool.folder)[0].path.stat().st_size
        assert segment.trim(spool.folder, before=100, keep_rows=1, keep_bytes=2 * one, keep_seconds=3600) == 3


@dataclass
class Leasing(Source):
    limits: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(lease=900.0))


def test_a_longer_lease_of_the_broker_is_heeded_and_after_a_restart_as_well(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path, remember=60) as spool:
        for n, lease in enumerate((19.0, 20.0, 900.0, 30.0)):
            messages = batch(n, n + 1)
            messages[0].connection = Leasing(limits=SimpleNamespace(lease=lease))
            spool.land(messages)
            wanted = 60 if n < 2 else 2700
            assert (told.told(spool.folder, told.REMEMBER), spool._seen.seconds) == (wanted, wanted)
    with Spool(tmp_path, remember=60) as again:
        again.land(batch(9, 10))
        assert (told.told(again.folder, told.REMEMBER), again._seen.seconds) == (2700, 2700)


def test_where_nothing_is_to_be_remembered_beyond_the_window_no_lease_changes_that(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path, remember=0) as spool:
        messages = batch(0, 3)
        for one in messages:
            one.connection = Leasing()
        spool.land(messages)
        assert told.told(spool.folder, told.REMEMBER) is None
        assert spool._seen.seconds == 0


def test_where_messages_have_no_lease_ids_are_remembered_as_was_asked_for(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path, remember=60) as spool:
        messages = batch(0, 3)
        for one in messages:
            one.connection = Leasing(limits=SimpleNamespace(lease=float("inf")))
        spool.land(messages)
        assert told.told(spool.folder, told.REMEMBER) == 60


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_the_time_is_a_number_of_seconds(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(WrongUse, match=r"Spool\(remember=.*\): a number of seconds is needed"):
        Spool(tmp_path, remember=seconds)


def test_what_an_id_takes_in_memory_is_what_the_page_says() -> None:
    seen = Seen(10**9)
    tracemalloc.start()
    try:
        seen.update((("node", "orders", b"%016x" % n) for n in range(500_000)), 1.0)
        each = tracemalloc.get_traced_memory()[0] / 500_000
    finally:
        tracemalloc.stop()
    assert 70 < each < 130  # a set doubles at times: by how many there are
    assert "about 110 bytes of memory" in (ROOT / "docs" / "spark.md").read_text().replace("\n", " ")


@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.0])
def test_where_no_lease_is_known_ids_are_remembered_for_as_short_as_was_asked_for(
    tmp_path: Path, batch: MakeBatch, seconds: float
) -> None:
    with Spool(tmp_path, remember=seconds) as spool:
        spool.land(batch(0, 3))
        assert spool._seen.seconds == seconds


def test_a_clock_that_is_set_while_it_runs_makes_it_forget_nothing(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_ahead, real = [0.0], time.time
    monkeypatch.setattr(spools.time, "time", lambda: real() + set_ahead[0])
    with Spool(tmp_path, window=3) as spool:
        assert spool.land(batch(0, 3)) == 3
        for at in range(1, 13):
            set_ahead[0] += 3600
            assert spool.land(batch(10 * at, 10 * at + 5)) == 5
        assert spool.land(batch(0, 3)) == 0
