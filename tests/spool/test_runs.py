"""Small segments joined: every row once, under the number and at the position that it had, whoever is killed or reads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from framework.spool import Spool, SpoolError, numbered, runs, segment
from framework.spool.root import root_of
from framework.spool.storage import Location, Remote
from framework.testing.storages import Hdfs
from tests.spool.rows import NOTED, MakeBatch, ids
from tests.spool.test_numbered import forget, memory_of
from tests.storages import Killed, fails_at

AT_ONCE = -60.0
"""A grace that is over for a run that was made at this moment: a storage has whole seconds for it and for its segments."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "BLOCK", 4)
    monkeypatch.setattr(runs, "GRACE", AT_ONCE)
    forget()


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.real)])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "folder":
        return tmp_path
    return root_of(request.getfixturevalue("spool_url")) if request.param == "s3" else request.getfixturevalue("memory")


def names(folder: Location) -> list[str]:
    if isinstance(folder, Path):
        return sorted(path.name for path in folder.iterdir())
    return [entry.name for entry in folder.list()]


def rows(folder: Location) -> list[tuple[int, int, str]]:
    """Number, position and id of all, as their places say."""
    found: list[tuple[int, int, str]] = []
    for one in segment.listing(folder):
        table = segment.read(one.path)
        places = (
            [table[name].to_pylist() for name in runs.PLACE] if one.first else [[one.number] * one.rows, list(range(one.rows))]
        )
        found += zip(*places, table["message_id"].to_pylist(), strict=True)
    return found


def land(folder: Location, batch: MakeBatch, first: int, last: int) -> None:
    """A segment of one or two messages each; ``n`` is in segment ``n // 3 * 2 + 1`` or the next."""
    with Spool(folder, window=2, remember=0) as spool:
        for n in range(first, last):
            spool.land(batch(3 * n, 3 * n + 1))
            spool.land(batch(3 * n + 1, 3 * n + 3))


def expected(last: int) -> list[tuple[int, int, str]]:
    places = [(2 * n + 1 + (one > 0), max(0, one - 1), 3 * n + one) for n in range(last) for one in range(3)]
    return [(number, position, f"{n:016x}") for number, position, n in places]


def test_every_row_stays_where_it_was_and_files_do_not_pile_up(folder: Location, batch: MakeBatch) -> None:
    land(folder, batch, 0, 20)
    assert rows(folder / "main") == expected(20)
    found = segment.listing(folder / "main")
    assert [(one.begins, one.number, one.rows) for one in found if one.first] == [(n, n + 3, 6) for n in range(1, 32, 4)]
    assert len(found) == 8 + 8
    if isinstance(folder, Path):
        assert len(list((folder / "main").glob("*.arrow"))) <= 12
    land(folder, batch, 20, 22)
    assert rows(folder / "main") == expected(22)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.long_run
@pytest.mark.timeout(400)
def test_every_row_stays_where_it_was_in_hdfs(hdfs: Hdfs, batch: MakeBatch) -> None:
    test_every_row_stays_where_it_was_and_files_do_not_pile_up(root_of(hdfs.url("runs/spool")), batch)


def test_a_listing_opens_nothing_and_says_when_the_rows_were_taken_and_landed(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time()
    land(tmp_path, batch, 0, 20)
    monkeypatch.setattr(segment, "read", lambda *_: pytest.fail("opened"))
    run = segment.listing(tmp_path / "main")[0]
    assert segment.times_of(tmp_path / "main", [run])[4][:2] == (1_700_000_000_123_456_789, 1_700_000_000_123_456_794)
    assert began - 1 < segment.landed_at(run) <= time.time()


def test_a_run_is_cut_where_one_of_its_numbers_is_meant_and_nothing_else_is(tmp_path: Path, batch: MakeBatch) -> None:
    land(tmp_path, batch, 0, 12)
    found = segment.listing(tmp_path / "main")
    assert [one.begins for one in found if one.first] == [1, 5, 9, 13]
    assert segment.cut(found) == segment.cut(found, 17, 24, 25) == found
    for number in (5, 8):
        cut = segment.cut(found, number)
        assert [(one.begins, one.number) for one in cut[:6]] == [(1, 4), (5, 5), (6, 6), (7, 7), (8, 8), (9, 12)]
        assert cut[5:] == found[2:]
    Path(str(found[1].path)).unlink()
    assert segment.cut(found, 6) == [found[0], *found[2:]]


def test_ids_in_runs_are_known_and_a_limit_of_deletion_is_kept(folder: Location, batch: MakeBatch) -> None:
    land(folder, batch, 0, 12)
    forget()
    with Spool(folder) as again:
        assert again.land(batch(0, 36)) == 0
    segment.trim(folder / "main", 7, 1)
    forget()
    assert segment.listing(folder / "main")[0].begins == 5, "5 to 8 are one file"
    segment.trim(folder / "main", 9, 1)
    forget()
    assert rows(folder / "main") == [one for one in expected(12) if one[0] > 8]


def test_large_segments_and_the_newest_stay_as_they_are(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_LARGE", 100)
    land(tmp_path, batch, 0, 12)
    assert all(one.first is None for one in segment.listing(tmp_path / "main"))


def test_joining_goes_on_with_the_next_batch_until_it_is_done_for_a_block(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool | Exception] = [False, False, True, OSError("full"), SpoolError("odd"), False]
    asked: list[int] = []

    def compact(*_: object) -> bool:
        asked.append(spool._next)
        answer = answers.pop(0) if answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(segment, "compact", compact)
    with Spool(tmp_path) as spool:
        for n in range(25):
            assert spool.land(batch(n, n + 1)) == 1
    assert asked == [8, 9, 10, 12, 16, 20, 21, 24]


def test_what_a_run_holds_stays_beside_it_for_a_while(tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "GRACE", 60.0)
    land(tmp_path, batch, 0, 12)
    assert len(list((tmp_path / "main").glob("*.arrow"))) == 24
    assert rows(tmp_path / "main") == expected(12)
    for run in (tmp_path / "main").glob("*.run"):
        os.utime(run, (0, time.time() - 61))
    land(tmp_path, batch, 12, 13)
    assert len(list((tmp_path / "main").glob("*.arrow"))) == 26 - 16
    assert rows(tmp_path / "main") == expected(13)


def test_killed_before_any_write_in_a_folder(tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    left = 0

    def killing(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed(name)
            return real(*arguments, **more)

        return call

    monkeypatch.setattr(segment, "compact", lambda *_: True)
    land(tmp_path, batch, 0, 12)
    monkeypatch.undo()
    monkeypatch.setattr(runs, "BLOCK", 4)
    monkeypatch.setattr(runs, "GRACE", AT_ONCE)
    for name in ("link", "unlink", "fsync"):
        monkeypatch.setattr(os, name, killing(name))
    kills = 0
    while True:
        left = 1 + kills % 5
        try:
            segment.compact(tmp_path / "main", 60.0)
        except Killed:
            kills += 1
            left = 0
            assert rows(tmp_path / "main") == expected(12)
        else:
            break
    left = 0
    assert kills > 10
    land(tmp_path, batch, 12, 13)
    assert rows(tmp_path / "main") == expected(13)
    assert sorted({name.rpartition(".")[2] for name in names(tmp_path / "main")}) == ["arrow", "epoch", "lock", "run", NOTED]


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_write_in_a_storage(memory: Remote, batch: MakeBatch, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(segment, "compact", lambda *_: True)
        land(memory, batch, 0, 12)
    storage, kills = memory_of(memory), 0
    while True:
        storage.fault = fails_at(1 + kills % 5, when, Killed)
        try:
            segment.compact(memory / "main", 60.0)
        except Killed:
            kills += 1
            storage.fault = lambda *_: None
            forget()
            assert rows(memory / "main") == expected(12)
        else:
            break
    assert kills > 10
    storage.fault = lambda *_: None
    storage.now += numbered._TAKEN_FOR + 1
    land(memory, batch, 12, 13)
    segment.compact(memory / "main", 60.0)
    forget()
    assert rows(memory / "main") == expected(13)
    assert len([name for name in names(memory / "main") if name.endswith((".arrow", ".rows"))]) == 4 + 2 * 6, (
        "no marks but those of the last day"
    )


def test_what_a_paused_collector_puts_under_a_number_of_a_run_is_refused(folder: Location, batch: MakeBatch) -> None:
    land(folder, batch, 0, 12)
    assert segment.write(folder / "main", 3, segment.table_of(list(batch(90, 91))), only=True) is None
    forget()
    assert rows(folder / "main") == expected(12)


def test_two_that_join_at_a_time_make_the_same(tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(segment, "compact", lambda *_: True)
        land(tmp_path, batch, 0, 12)
    real = segment.files.write_run

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(segment.files, "write_run", real)
        segment.compact(tmp_path / "main", 60.0)
        real(*arguments)

    monkeypatch.setattr(segment.files, "write_run", late)
    segment.compact(tmp_path / "main", 60.0)
    assert rows(tmp_path / "main") == expected(12)
    assert len(segment.listing(tmp_path / "main")) == 4 + 8


def test_nodes_whose_ids_last_and_others_are_not_joined(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as spool:
        for n in range(24):
            spool.land(batch(n, n + 1, lasting_ids=n % 2 == 0))
    assert all(one.first is None for one in segment.listing(tmp_path / "main"))
    assert ids(spool) == [f"{n:016x}" for n in range(24)]


def test_a_damaged_segment_keeps_its_own_block_alone_from_being_joined(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as spool:
        for n in range(24):
            spool.land(batch(n, n + 1))
            if n == 4:
                Path(str(segment.listing(spool.folder)[4].path)).write_bytes(b"damaged")
    assert [one.first for one in segment.listing(tmp_path / "main") if one.first] == [1, 9, 13]
