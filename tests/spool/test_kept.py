"""Which segments are kept for their ids, and which runs hold any of some, to the segment, the row, the byte and the second."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from framework.spool import Spool, numbered, runs, segment
from framework.spool.arrow import Segment
from framework.spool.storage import Location, Remote
from tests.spool.rows import MakeBatch
from tests.spool.test_numbered import forget, memory_of
from tests.spool.test_runs import expected, folder, land, rows, small
from tests.spool.test_runs_and_others import then, without_runs

__all__ = ["folder", "small"]


def kept(rows: int, seconds: float, *some: tuple[int, float]) -> list[int]:
    """The numbers of those that are kept of ``some``: how many rows each has, and when it was landed."""
    found = [Segment(number, count, Path("/none"), landed=at) for number, (count, at) in enumerate(some, 1)]
    return [one.number for one in segment.newest(found, rows, seconds)]


def test_the_newest_are_kept_that_hold_so_many_rows() -> None:
    some = [(3, 0.0)] * 4
    assert [kept(rows, 0.0, *some) for rows in (1, 3, 4, 6, 7, 12, 13)] == [
        [4], [4], [3, 4], [3, 4], [2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4],
    ]  # fmt: skip
    assert kept(5, 0.0) == kept(5, 10.0) == []


def test_and_those_that_were_landed_in_the_seconds_before_the_last() -> None:
    some = [(1, 80.0), (1, 90.0), (1, 95.0), (1, 100.0)]
    assert [kept(1, seconds, *some) for seconds in (0.0, 4.5, 5.0, 9.5, 10.0, 19.5, 20.0)] == [
        [4], [3, 4], [3, 4], [3, 4], [2, 3, 4], [2, 3, 4], [1, 2, 3, 4],
    ]  # fmt: skip
    assert kept(1, 0.0, (1, 100.0), (1, 100.0)) == [2], "where no time is said, none counts"
    assert kept(3, 5.0, *some) == [2, 3, 4]


@pytest.mark.parametrize(("landed", "numbers"), [
    pytest.param([10, 11, 3612, 3613], [1, 2, 3, 4], id="an hour ahead"),
    pytest.param([3610, 3611, 12, 13], [1, 2, 3, 4], id="an hour back"),
    pytest.param([3610, 3611, 12, 13, 180, 194], [5, 6], id="an hour back, and long ago"),
    pytest.param([10, 100, 3700, 3800, 3870], [2, 3, 4, 5], id="an hour ahead, and some of that long ago"),
    pytest.param([10, 3700, 7400], [2, 3], id="of two the older one counts"),
    pytest.param([10, 0, 20], [1, 2, 3], id="one has gone meanwhile"),
])  # fmt: skip
def test_what_a_clock_that_was_set_makes_old_stays(landed: list[float], numbers: list[int]) -> None:
    """Nobody knows whether it was, or nothing came for so long. Messages that come again would be taken for new."""
    assert kept(1, 180.0, *[(1, float(at)) for at in landed]) == numbers


@pytest.mark.parametrize("rows", [0, 1])
def test_of_segments_of_one_row_the_last_alone_keeps_the_numbering(tmp_path: Path, batch: MakeBatch, rows: int) -> None:
    with Spool(tmp_path) as spool:
        for n in range(4):
            spool.land(batch(n, n + 1))
    assert segment.trim(spool.folder, before=100, keep_rows=rows) == 3
    assert [one.number for one in segment.listing(spool.folder)] == [4]
    assert segment.trim(spool.folder, before=100, keep_rows=9, keep_bytes=1) == 0, "however large it is"


def test_nothing_is_trimmed_where_nothing_is(tmp_path: Path, memory: Remote) -> None:
    for place in (tmp_path / "none", memory / "none"):
        assert segment.trim(place, before=100, keep_rows=1, keep_bytes=1, keep_seconds=60) == 0
    assert memory_of(memory).objects == {}


def test_what_has_gone_has_no_size_and_no_age(tmp_path: Path, batch: MakeBatch) -> None:
    gone = Segment(1, 5, tmp_path / "none")
    assert (segment.size(gone), segment.landed_at(gone)) == (0, 0.0)


@pytest.mark.parametrize(
    ("first", "last", "begins"), [(1, 1, [1]), (4, 4, [1]), (4, 5, [1, 5]), (5, 8, [5]), (8, 13, [5, 9, 13]), (17, 24, [])]
)
def test_the_runs_are_found_that_hold_any_of_some(
    tmp_path: Path, batch: MakeBatch, first: int, last: int, begins: list[int]
) -> None:
    land(tmp_path, batch, 0, 12)
    assert [one.begins for one in segment.joined(tmp_path / "main", first, last)] == begins


def test_who_opens_when_the_first_that_a_run_holds_has_gone_knows_its_ids(
    folder: Location, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_runs(folder, batch, 12)
    main, here = folder / "main", segment.files if isinstance(folder, Path) else numbered

    def join() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(here, "remove_held", lambda *_: True)
            segment.compact(main, 60.0)
        for _ in range(1 if isinstance(folder, Path) else 2):  # a storage has its rows under a name of their own
            assert not here.remove_held(main, 0.0)

    then(monkeypatch, segment, "steady", join)
    with Spool(folder) as again:
        assert again.land(batch(0, 36)) == 0
    forget()
    assert rows(main) == expected(12)


def test_a_block_is_joined_where_it_has_less_than_is_large(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [Segment(number, 1, tmp_path) for number in range(1, 15)]
    monkeypatch.setattr(runs, "_LARGE", 40)
    assert [block[0].number for block in runs.due(some, lambda _: 9)] == [1, 5]
    assert list(runs.due(some, lambda _: 10)) == []
    assert [block[0].number for block in runs.due(some[:13], lambda _: 9)] == [1, 5]
    assert [block[0].number for block in runs.due(some[:12], lambda _: 9)] == [1]
    assert list(runs.due([], lambda _: 9)) == []


def test_what_was_read_of_others_is_not_kept_while_a_block_is_read(tmp_path: Path, batch: MakeBatch) -> None:
    """As of a block that a query has deleted meanwhile."""
    with Spool(tmp_path) as spool:
        for n in range(2):
            spool.land(batch(n, n + 1))
    block = segment.listing(spool.folder)
    begun: dict[Location, object] = {tmp_path / "gone": "its rows"}
    assert segment._read_all(block, begun, math.inf)
    assert begun.keys() == {one.path for one in block}


@pytest.mark.parametrize(("less", "gone"), [(0, 3), (1, 4)])
def test_for_the_ids_are_kept_as_many_bytes_as_may_be(tmp_path: Path, batch: MakeBatch, less: int, gone: int) -> None:
    with Spool(tmp_path) as spool:
        for n in range(5):
            spool.land(batch(n, n + 1))
    sizes = {segment.size(one) for one in segment.listing(spool.folder)}
    assert len(sizes) == 1
    assert segment.trim(spool.folder, before=100, keep_rows=9, keep_bytes=2 * sizes.pop() - less) == gone


def test_a_run_was_landed_when_the_last_was_that_it_holds(tmp_path: Path, batch: MakeBatch) -> None:
    without_runs(tmp_path, batch, 6)
    main = tmp_path / "main"
    for one in segment.listing(main):
        os.utime(one.path, (1e9 + one.number, 1e9 + one.number))  # type: ignore[arg-type]
    assert segment.compact(main, 60.0)
    assert [one.landed for one in segment.listing(main)] == [1e9 + 4, *[None] * 8]


def test_where_a_query_deletes_of_one_block_the_next_is_joined_all_the_same(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_runs(tmp_path, batch, 12)
    main = tmp_path / "main"
    then(monkeypatch, segment, "steady", Path(str(segment.listing(main)[0].path)).unlink)
    assert segment.compact(main, 60.0)
    assert [one.begins for one in segment.listing(main) if one.first] == [5, 9, 13]


def test_whoever_opens_another_spool_under_the_same_name_looks_at_it_from_its_beginning(memory: Remote, batch: MakeBatch) -> None:
    forget()
    with Spool(memory) as spool:
        for n in range(5):
            spool.land(batch(n, n + 1))
    numbered._floors[memory / "main"] = 3  # of the one before
    with Spool(memory) as again:
        assert again.land(batch(0, 5)) == 0
    forget()


def test_what_is_noted_is_tidied_by_each_who_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tidied: list[Path] = []
    monkeypatch.setattr("framework.spool.times.tidy", lambda folder, _: tidied.append(folder))
    for shared in (True, False):
        with Spool(tmp_path, shared=shared):
            assert tidied == [tmp_path / "main"] * (2 - shared)


@pytest.mark.parametrize("lasting", [True, False])
def test_a_run_says_whose_ids_are_given_out_once(tmp_path: Path, batch: MakeBatch, lasting: bool) -> None:
    """Of those the time tells no two apart."""
    with Spool(tmp_path) as spool:
        for n in range(12):
            spool.land(batch(n, n + 1, lasting_ids=lasting))
    assert segment.listing(spool.folder)[0].first == 1
    later = batch(0, 4, lasting_ids=lasting)
    for message in later:
        message.timestamp += 1
    with Spool(tmp_path) as again:
        assert again.land(later) == (0 if lasting else 4)
