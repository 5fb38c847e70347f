"""What is noted of segments follows what is there, and not what was: whoever else writes, and wherever a collector is killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framework.spool import Spool, runs, segment, times
from framework.spool.arrow import Segment
from framework.spool.times import Notes, Times
from tests.spool.rows import MakeBatch


class Killed(BaseException):
    pass


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "_BLOCK", 4)
    monkeypatch.setattr(runs, "BLOCK", 4)


def noted(folder: Path) -> list[int]:
    """The first number of each file's block."""
    return [int(path.name.removeprefix("times-")) for path in sorted(folder.glob("times-*"))]


def there(*numbers: int, rows: int = 2) -> list[Segment]:
    return [Segment(number, rows, Path("/nowhere")) for number in numbers]


def write_earlier(folder: Path, *lines: str) -> None:
    (folder / "times").write_text("".join(f"\n{line}\n" for line in lines))


def land(spool: Spool, batch: MakeBatch, first: int, last: int) -> None:
    for n in range(first, last):
        assert spool.land(batch(n, n + 1)) == 1


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_noted_of_segments_that_have_gone_goes_at_an_opening(tmp_path: Path, batch: MakeBatch, shared: bool) -> None:
    with Spool(tmp_path, window=1, remember=0) as spool:
        land(spool, batch, 0, 10)
    segment.trim(spool.folder, 10, 1)
    with Spool(tmp_path, shared=shared) as again:
        assert noted(again.folder) == [8]
        assert sorted(times.known(again.folder, segment.listing(again.folder))) == [10]


@pytest.mark.parametrize("shared", [False, True])
def test_and_while_a_collector_runs(tmp_path: Path, batch: MakeBatch, shared: bool) -> None:
    """What a query reads and deletes, and what runs hold, whose names say it."""
    with Spool(tmp_path, window=1, remember=0, shared=shared) as spool:
        for n in range(40):
            land(spool, batch, n, n + 1)
            segment.trim(spool.folder, n, 1)
            assert len(noted(spool.folder)) <= 3
    with Spool(tmp_path, "other", shared=shared) as spool:
        land(spool, batch, 0, 40)
        assert len(noted(spool.folder)) <= 4
        assert len(segment.times_of(spool.folder, kept := segment.listing(spool.folder))) == len(kept) > 10


def test_who_opens_reads_what_is_noted_of_the_newest_alone(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there were: a week of one a second took 10 s of CPU."""
    with Spool(tmp_path, shared=True) as spool:
        land(spool, batch, 0, 30)
    read: list[Path] = []
    content = times._content
    monkeypatch.setattr(times, "_content", lambda file, *begin: read.append(file) or content(file, *begin))
    with Spool(tmp_path, shared=True) as again:
        land(again, batch, 30, 31)
    assert {path.name for path in read} == {f"times-{28:020d}"}


def test_the_number_of_the_newest_is_given_to_no_other_where_all_before_have_gone(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path, window=1, remember=0) as spool:
        land(spool, batch, 0, 9)
    segment.trim(spool.folder, 9, 1)
    (one,) = segment.listing(spool.folder)
    Path(str(one.path)).unlink()
    for shared in (True, False):
        with Spool(tmp_path, shared=shared) as again:
            assert again._next == 10
    with Spool(tmp_path, shared=True) as again:
        land(again, batch, 9, 10)
        assert [one.number for one in segment.listing(again.folder)] == [10]


def test_what_a_collector_notes_that_stood_still_while_its_segments_went_is_deleted_by_the_next(tmp_path: Path) -> None:
    for number in (2, 9, 14):
        times._append(times._file_of(tmp_path, number), times._line(number, 2, Times(1, 2)))
    times.tidy(tmp_path, there(13, 14))
    times._append(times._file_of(tmp_path, 3), times._line(3, 2, Times(1, 2)))
    assert times.highest(tmp_path) == 14
    assert noted(tmp_path) == [0, 12]
    times.tidy(tmp_path, there(13, 14))
    assert noted(tmp_path) == [12]


def test_what_is_noted_of_numbers_behind_a_listing_stays(tmp_path: Path) -> None:
    """Others land while one tidies."""
    for number in (2, 9, 14):
        times._append(times._file_of(tmp_path, number), times._line(number, 2, Times(1, 2)))
    for kept in ([], there(1), there(2, 4)):
        times.tidy(tmp_path, kept)
        assert noted(tmp_path) == [0, 8, 12]
    times.tidy(tmp_path, there(9))
    assert noted(tmp_path) == [8, 12]


def test_who_asks_after_a_while_reads_the_newest_of_which_a_line_is_whole(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    for number in (1, 6, 22):
        times._append(times._file_of(tmp_path, number), times._line(number, 2, Times(1, 2)))
    times._file_of(tmp_path, 24).write_bytes(b"\n[24, 2, 1")
    times._file_of(tmp_path, 28).write_bytes(b"\n[7, 2, 1, 1, null]\n[44, 2, 1, 1, null]\n")  # not of this block
    assert notes.highest() == times.highest(tmp_path) == 22
    with times._file_of(tmp_path, 24).open("ab") as file:
        file.write(b", 1, null]\n")
    assert notes.highest() == 24


def test_who_asks_again_reads_nothing_older_than_what_it_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 6):
        times._append(times._file_of(tmp_path, number), times._line(number, 2, Times(1, 2)))
    notes, content, read = Notes(tmp_path), times._content, list[tuple[str, int]]()
    assert notes.highest() == 6
    monkeypatch.setattr(times, "_content", lambda file, begin=0: read.append((file.name, begin)) or content(file, begin))
    assert notes.highest() == 6
    assert read == [(f"times-{4:020d}", len(times._line(6, 2, Times(1, 2))))]


def test_the_last_file_stays_where_nothing_is_noted_of_newer_segments(tmp_path: Path) -> None:
    """They may be removed by hand, and no number is given twice."""
    for number in (2, 9):
        times._append(times._file_of(tmp_path, number), times._line(number, 2, Times(1, 2)))
    times.tidy(tmp_path, there(21))
    assert noted(tmp_path) == [8]


# --- what earlier versions had in one file


EARLIER = [
    '[1, 2, 10, 20, ["b", "a"]]',
    "[2, 2, 11, 21, null]",
    "[2, 3, 0, 0, null]",
    "[9, 2, 12, 22, null]",
    "[7, 2, 13, 23, null]",
]


def test_the_file_of_an_earlier_version_is_divided_as_far_as_its_segments_are_there(tmp_path: Path) -> None:
    write_earlier(tmp_path, *EARLIER, *(f"[{number}, 2, 1, 1, null]" for number in range(10, 3000)), "[2999, 2, 1", "not of ours")
    kept = there(1, 2, 5, 7)
    before = times.known(tmp_path, kept)
    assert before == {1: Times(10, 20, frozenset("ab")), 2: Times(11, 21), 7: Times(13, 23)}
    assert times.highest(tmp_path) == 2999
    times.tidy(tmp_path, kept)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"times-{first:020d}" for first in (0, 4, 2996)]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 150
    assert times.known(tmp_path, kept) == before
    assert times.highest(tmp_path) == 2999


def test_what_was_noted_since_counts_and_not_what_an_earlier_version_has(tmp_path: Path) -> None:
    write_earlier(tmp_path, *EARLIER)
    times._append(times._file_of(tmp_path, 2), times._line(2, 2, Times(5, 6)))
    for _ in range(2):
        assert times.known(tmp_path, there(2)) == {2: Times(5, 6)}
        times.tidy(tmp_path, there(1, 2, 9))
    assert not (tmp_path / "times").exists()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("verb", ["open", "write", "unlink"])
def test_killed_at_any_write_while_it_is_divided_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, after: bool
) -> None:
    kept = there(1, 2, 9)
    write_earlier(tmp_path, *EARLIER, "[50, 2, 1, 1, null]")
    before = times.known(tmp_path, kept)
    left = kills = 0

    def dying(done: Callable[..., Any]) -> Callable[..., Any]:
        def do(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0 and not after:
                raise Killed
            result = done(*given, **named)
            if left == 0:
                raise Killed
            return result

        return do

    monkeypatch.setattr(times.os, verb, dying(getattr(os, verb)))
    while True:
        left = kills + 1
        try:
            times.tidy(tmp_path, kept)
        except Killed:
            kills += 1
            assert times.known(tmp_path, kept) == before
            assert times.highest(tmp_path) == 50
        else:
            break
    assert kills >= 1
    times.tidy(tmp_path, kept)
    assert (times.known(tmp_path, kept), times.highest(tmp_path)) == (before, 50)
    assert not (tmp_path / "times").exists()


def test_where_the_disk_takes_half_of_a_line_what_an_earlier_version_has_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = there(1, 2, 9)
    write_earlier(tmp_path, *EARLIER, "[50, 2, 1, 1, null]")
    before = times.known(tmp_path, kept)
    write = os.write
    with monkeypatch.context() as nearly_full:
        nearly_full.setattr(times.os, "write", lambda handle, lines: write(handle, lines[: len(lines) // 2]))
        times.tidy(tmp_path, kept)
        assert (times.known(tmp_path, kept), times.highest(tmp_path)) == (before, 50)
    times.tidy(tmp_path, kept)
    assert (times.known(tmp_path, kept), times.highest(tmp_path)) == (before, 50)


def test_two_who_divide_it_at_a_time_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_earlier(tmp_path, *EARLIER)
    kept = there(1, 2, 9)
    before = times.known(tmp_path, kept)
    append = times._append

    def both(file: Path, lines: bytes) -> None:
        monkeypatch.setattr(times, "_append", append)
        times.tidy(tmp_path, kept)
        append(file, lines)

    monkeypatch.setattr(times, "_append", both)
    times.tidy(tmp_path, kept)
    assert times.known(tmp_path, kept) == before
    assert times.highest(tmp_path) == 9
    assert noted(tmp_path) == [0, 8]


def test_a_collector_goes_on_behind_what_an_earlier_version_has_noted(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as spool:
        land(spool, batch, 0, 1)
    write_earlier(tmp_path / "main", "[1, 1, 1, 1, null]", "[6, 1, 1, 1, null]")
    with Spool(tmp_path, shared=True) as again:
        assert again._next == 7
        assert not (tmp_path / "main" / "times").exists()
        land(again, batch, 1, 2)
        assert [one.number for one in segment.listing(again.folder)] == [1, 7]
