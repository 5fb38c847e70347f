"""The numbers of segments: never two of one, no gap, whoever writes, with locks and without."""

from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from framework.errors import WrongUse
from framework.message import Batch
from framework.spool import Spool, SpoolError, files, segment, times
from tests.spool.rows import MakeBatch, ids


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system where flock says yes to everybody."""
    monkeypatch.setattr("framework.spool.files.fcntl.flock", lambda *_: None)


def numbers(spool: Spool) -> list[int]:
    return [one.number for one in segment.listing(spool.folder)]


def test_two_writers_without_locks_never_take_one_number(tmp_path: Path, batch: MakeBatch, no_locks: None) -> None:
    with Spool(tmp_path) as first, Spool(tmp_path) as second:
        first.land(batch(0, 3))
        second.land(batch(3, 8))
        assert [(one.number, one.rows) for one in segment.listing(first.folder)] == [(1, 3), (2, 5)]
        second.land(batch(8, 9))
        first.land(batch(9, 11))
        assert [(one.number, one.rows) for one in segment.listing(first.folder)] == [(1, 3), (2, 5), (3, 1), (4, 2)]
    assert sorted(path.suffix for path in first.folder.iterdir()) == ["", "", "", "", *[".arrow"] * 4], "no claim stays"


def test_a_writer_left_behind_goes_on_behind_the_newest(tmp_path: Path, batch: MakeBatch, no_locks: None) -> None:
    with Spool(tmp_path) as first, Spool(tmp_path) as second:
        second.land(batch(0, 1))
        for n in range(1, 9):
            first.land(batch(n, n + 1))
        segment.trim(first.folder, before=8, keep_rows=2)
        assert second.land(batch(20, 25)) == 5
        assert numbers(first) == [8, 9, 10], "2 to 7 were read and deleted: nobody would look there again"


def _land_without_locks(folder: Path, worker: int, batches: list[Batch]) -> None:
    files.fcntl.flock = lambda *_: None  # type: ignore[assignment]
    spool = Spool(folder)
    for one in batches:
        while True:
            try:
                spool.land(one)
                break
            except SpoolError:  # another one that opens removes unfinished files
                continue


def test_many_writers_without_locks_leave_no_gap_and_no_double_number(tmp_path: Path, batch: MakeBatch) -> None:
    fork = multiprocessing.get_context("fork")
    sizes = [1, 2, 3, 1, 2] * 6
    writers = []
    for worker in range(4):
        starts = [worker * 1000 + sum(sizes[:n]) for n in range(len(sizes))]
        batches = [batch(first, first + size) for first, size in zip(starts, sizes, strict=True)]
        writers.append(fork.Process(target=_land_without_locks, args=(tmp_path, worker, batches)))
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    spool = Spool(tmp_path)
    assert numbers(spool) == list(range(1, 4 * len(sizes) + 1))
    assert len(set(ids(spool))) == 4 * sum(sizes)
    assert sum(one.rows for one in segment.listing(spool.folder)) == len(ids(spool)) == 4 * sum(sizes)


@pytest.mark.parametrize("opened_before", [True, False])
def test_a_number_whose_holder_died_gets_the_rows_it_was_claimed_for(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, opened_before: bool, no_locks: None
) -> None:
    other = Spool(tmp_path)
    if opened_before:
        other.open()
    with monkeypatch.context() as dying:
        dying.setattr(files, "_name_claimed", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Spool(tmp_path).land(batch(0, 3))
    assert numbers(other) == []
    other.land(batch(5, 7))
    assert [(one.number, one.rows) for one in segment.listing(other.folder)] == [(1, 3), (2, 2)]
    assert [path.name for path in other.folder.iterdir() if path.suffix in (".claim", ".tmp")] == []
    again = Spool(tmp_path)
    assert again.land(batch(0, 3)) == 0, "its messages were never finished, come again, and are here"


def test_a_claim_of_what_is_named_already_goes(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 3))
        os.link(segment.listing(spool.folder)[0].path, spool.folder / f"{1:020d}.claim")
    with Spool(tmp_path) as again:
        assert again.land(batch(3, 5)) == 2
        assert numbers(again) == [1, 2]
        assert not list(again.folder.glob("*.claim"))


def test_a_file_system_without_locks_is_not_taken_for_another_collector(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("framework.spool.files.fcntl.flock", none)
    with pytest.raises(SpoolError, match="cannot be opened: No locks available"):
        Spool(tmp_path).land(batch(0, 1))


def test_two_files_of_one_number_are_an_error_and_not_a_guess(tmp_path: Path, batch: MakeBatch) -> None:
    spool = Spool(tmp_path)
    spool.land(batch(0, 3))
    (spool.folder / f"{1:020d}-9.arrow").write_bytes(b"")
    with pytest.raises(SpoolError, match="have one number"):
        segment.listing(spool.folder)


def test_a_second_process_cannot_be_the_same_collector(tmp_path: Path, batch: MakeBatch) -> None:
    script = (
        "import sys; from framework.spool import Spool; s = Spool(sys.argv[1], 'a'); s.open(); print('open', flush=True); input()"
    )
    other = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(WrongUse, match=f"process {other.pid} is this collector already; give every process"):
            Spool(tmp_path, "a").land(batch(0, 1))
        assert Spool(tmp_path, "b").land(batch(0, 1)) == 1
    finally:
        other.kill()
        other.communicate()
    assert Spool(tmp_path, "a").land(batch(0, 1)) == 1, "a killed collector's lock is free"


def test_a_lock_that_says_nothing_is_somebodys_all_the_same(tmp_path: Path) -> None:
    with Spool(tmp_path, "a") as holder:
        (holder.folder / "lock").write_bytes(b"")  # it is written once it is held
        with pytest.raises(WrongUse, match="process unknown is this collector already"):
            Spool(tmp_path, "a").open()


def test_a_claim_that_its_holder_has_finished_is_nobodys(tmp_path: Path) -> None:
    files.settle(tmp_path / f"{1:020d}.claim")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_begun_is_told_as_what_it_is(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(files, "_write_and_sync", full)
    rows = segment.table_of(list(batch(0, 1)))
    with pytest.raises(OSError, match="no space left"):
        files.write(tmp_path, 1, rows)
    with pytest.raises(OSError, match="no space left"):
        files.write_run(tmp_path, "one.run", rows)


def test_the_name_of_a_run_is_durable_before_what_it_holds_may_go(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[list[str]] = []
    monkeypatch.setattr(files, "sync_folder", lambda folder: synced.append(os.listdir(folder)))
    for _ in range(2):
        files.write_run(tmp_path, "one.run", segment.table_of(list(batch(0, 1))))
    assert synced == [["one.run"]] * 2


def test_what_a_killed_writer_left_half_done_is_removed(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        (spool.folder / "abc.tmp").write_bytes(b"half")
    Spool(tmp_path).open()
    assert sorted(os.listdir(spool.folder)) == ["epoch", "lock", "remember"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_collector_that_starts_again_goes_on_behind_its_last_segment(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """And tries no number that it has: each would cost a look at the segment there."""
    with Spool(tmp_path, shared=shared) as spool:
        for n in range(0, 50, 10):
            spool.land(batch(n, n + 10))
    tried: list[int] = []
    write = segment.write

    def counted(folder: Path, number: int, *more: object, **options: object) -> object:
        tried.append(number)
        return write(folder, number, *more, **options)

    monkeypatch.setattr(segment, "write", counted)
    with Spool(tmp_path, shared=shared) as again:
        again.land(batch(50, 60))
    assert tried == [6]


def test_what_tells_a_segment_from_another_of_its_number_is_the_same_in_each_version(tmp_path: Path, batch: MakeBatch) -> None:
    """A query's checkpoint has it."""
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 3))
        spool.land(batch(3, 5))
        spool.land(batch(5, 6))
        spool.land(batch(6, 7))
    marks = [segment.mark_of(one) for one in segment.listing(spool.folder)]
    assert marks[0] == "968a6454e639c2fa"
    assert len(set(marks)) == 4
    assert times.mark_of("127.0.0.1:4150") == "62152ee8"
