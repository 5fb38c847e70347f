"""What is older than a collector's ``retention`` goes, and nothing because a clock was set."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.spool import Spool, segment
from framework.spool.expiry import Expiry
from tests.spool.rows import NOTED, MakeBatch

DAY = 86400.0
YEAR = 365 * DAY


@pytest.fixture
def left(tmp_path: Path, batch: MakeBatch) -> Callable[..., list[int]]:
    """The numbers that stay of segments that were landed at these days, with a retention of one."""

    def of(*days: float) -> list[int]:
        spool = Spool(tmp_path)
        for n, day in enumerate(days):
            spool.land(batch(n, n + 1))
            os.utime(segment.listing(spool.folder)[-1].path, (1e9 + DAY * day, 1e9 + DAY * day))
        kept = segment.listing(spool.folder)
        gone = Expiry(spool.folder, DAY).of(kept)
        assert [one.number for one in gone] == list(range(1, len(gone) + 1))
        return [one.number for one in kept[len(gone) :]]

    return of


@pytest.mark.parametrize(
    ("days", "stay"),
    [
        ((), []),
        ((1,), [1]),
        ((1, 1.5, 2, 2.4), [2, 3, 4]),
        ((1, 1.5, 367, 367.1), [1, 2, 3, 4]),  # a year ahead: nobody knows
        ((1, 1.5, 367, 367.5, 368.1), [4, 5]),  # and now a day has passed all the same
        ((366, 366.5, 1, 1.5), [1, 2, 3, 4]),  # set back, a year of waiting is not due
        ((366, 366.5, 1, 1.5, 2.1), [4, 5]),
        ((1, 8, 15, 22), [3, 4]),  # one a week: only the newest pause is doubted
        ((1, 1.1, 367, 1.2, 367.1), [1, 2, 3, 4, 5]),  # set ahead, set right, and ahead again
        ((10, 1, 10.1, 1.1, 10.2), [1, 2, 3, 4, 5]),  # two hosts whose clocks differ by days land in turn
        ((1, 1.6, 1.1, 1.7, 1.2, 1.8), [1, 2, 3, 4, 5, 6]),  # or by hours
        ((1, 1.6, 1.1, 1.7, 1.2, 2.05), [2, 3, 4, 5, 6]),
    ],
)
def test_what_is_older_goes(left: Callable[..., list[int]], days: tuple[float, ...], stay: list[int]) -> None:
    assert left(*days) == stay


@pytest.mark.parametrize(
    ("seconds", "gone"),
    [
        ((0, 10), 0),  # as old as the retention, and no older
        ((0, 10, 10.5), 1),
        ((0, 5, 9.5, 9.9), 0),
        ((0, 10, 20), 1),  # no pause that is longer than the retention
        ((0, 5, 10.5, 10), 0),
        ((0, 5, 10.6, 10.2), 1),  # what was dated later than one that came after it takes nothing from the age of others
    ],
)
def test_how_old_is_told_to_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...], gone: int
) -> None:
    """And each is dated once: whoever looks each minute does not ask the file system for all of them."""
    kept = [segment.Segment(number, 1, tmp_path / f"{number}") for number in range(1, len(seconds) + 1)]
    asked: list[int] = []

    def landed_at(one: segment.Segment) -> float:
        asked.append(one.number)
        return 1e9 + seconds[one.number - 1]

    monkeypatch.setattr(segment, "landed_at", landed_at)
    expiry = Expiry(tmp_path, 10)
    for _ in range(2):
        assert [one.number for one in expiry.of(kept)] == list(range(1, gone + 1))
    assert asked == [one.number for one in kept]


def test_segments_that_have_the_numbers_of_others_that_went_are_as_old_as_they_are(tmp_path: Path, batch: MakeBatch) -> None:
    """As where a spool was emptied while its collector lived on."""
    with Spool(tmp_path) as before:
        for n in range(3):
            before.land(batch(n, n + 1))
        for one, hours in zip(segment.listing(before.folder), (23, 12, 1), strict=True):
            at = one.path.stat().st_mtime - 3600 * hours
            os.utime(one.path, (at, at))
    spool = Spool(tmp_path, retention=DAY, window=1, remember=0)
    spool.land(batch(3, 4))
    spool.close()
    for path in [*(one.path for one in segment.listing(spool.folder)), spool.folder / NOTED]:
        path.unlink()
    for n in range(5):
        spool.land(batch(10 + n, 11 + n))
    newest = segment.listing(spool.folder)[-1].path
    os.utime(newest, (newest.stat().st_mtime + 7200, newest.stat().st_mtime + 7200))
    spool._expire_at = 0.0
    assert spool.land(batch(14, 15)) == 0
    assert [one.number for one in segment.listing(spool.folder)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("retention", "pause"), [(100.0, 10.0), (600.0, 60.0), (DAY, 60.0)])
def test_it_is_looked_ten_times_in_a_retention_and_once_a_minute_at_the_least(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, retention: float, pause: float
) -> None:
    now, looks = [1_000.0], list[float]()
    monkeypatch.setattr("framework.spool.spool.time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    monkeypatch.setattr(Expiry, "of", lambda *_: looks.append(now[0]))
    with Spool(tmp_path, retention=retention) as spool:
        for now[0] in (1_000.0, 1_001.0, 999.9 + pause, 1_000.0 + pause, 1_000.1 + pause):
            spool.land(batch(0, 1))
    assert looks == [1_000.0, 1_000.0 + pause]


def test_a_clock_that_is_set_a_year_ahead_is_told_once_and_deletes_nothing_that_nobody_has_read(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path, retention=DAY, window=1, remember=0)
    for n in range(3):
        spool.land(batch(n, n + 1))
    write = segment.write
    ahead = itertools.count(1)

    def a_year_ahead(*given: Any, **more: Any) -> Any:
        one: Any = write(*given, **more)
        at = one.path.stat().st_mtime + YEAR + next(ahead)
        os.utime(one.path, (at, at))
        return one

    monkeypatch.setattr(segment, "write", a_year_ahead)
    for n in range(3, 6):
        spool._expire_at = 0.0
        spool.land(batch(n, n + 1))
    assert [one.number for one in segment.listing(spool.folder)] == [1, 2, 3, 4, 5, 6]
    (said,) = [record.message for record in caplog.records if record.name == "framework.spool.expiry"]
    assert "between segments 3 and 4 the clock went on by 3153" in said
    assert said.endswith("set it right; what is older stays until the retention of 86400 s has passed since")
