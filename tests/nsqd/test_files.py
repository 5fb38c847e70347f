"""Files of the data folder: who may read them, and what is said of one that cannot be used. No nsqd runs here."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from framework.nsqd.store import files, lostend, segments
from framework.nsqd.store.index import Row


@pytest.mark.parametrize(("name", "before", "after"), [
    ("log", 0o755, 0o700), ("log", 0o710, 0o700), ("log", 0o701, 0o700), ("log", 0o700, 0o700), ("log", 0o500, 0o500),
    ("index.db", 0o644, 0o600), ("index.db", 0o640, 0o600), ("index.db", 0o602, 0o600), ("index.db", 0o601, 0o600),
    ("index.db", 0o400, 0o400),
])  # fmt: skip
def test_a_folder_or_file_that_others_could_use_is_this_user_s_alone(tmp_path: Path, name: str, before: int, after: int) -> None:
    path = tmp_path / name
    path.mkdir() if name == "log" else path.touch()
    path.chmod(before)
    files.keep_private(path)
    assert stat.S_IMODE(path.stat().st_mode) == after


def test_what_is_not_there_needs_no_keeping(tmp_path: Path) -> None:
    files.keep_private(tmp_path / "index.db-wal")
    assert list(tmp_path.iterdir()) == []


def of_the_index(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "free_blocks", "fix"),
    [
        (sqlite3.SQLITE_IOERR, 255, "make room"), (sqlite3.SQLITE_IOERR, 256, "look at the disk and the system"),
        (sqlite3.SQLITE_IOERR_WRITE, 0, "make room"), (sqlite3.SQLITE_IOERR_WRITE, 1 << 18, "look at the disk and the system"),
        (sqlite3.SQLITE_CANTOPEN, 0, "make room"), (sqlite3.SQLITE_CANTOPEN, 1 << 18, "let this user read and write it"),
        (sqlite3.SQLITE_READONLY, 0, "let this user read and write it"), (sqlite3.SQLITE_BUSY, 0, "end what else has it open"),
        (sqlite3.SQLITE_FULL, 1 << 18, "make room"), (sqlite3.SQLITE_ERROR, 0, "mend that"),
    ],
)  # fmt: skip
def test_what_to_do_about_an_index_depends_on_whether_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, free_blocks: int, fix: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free_blocks, f_frsize=4096))
    said = files.explain(tmp_path, of_the_index(code))
    assert said.startswith(f"the data folder {tmp_path} cannot be used: {tmp_path / 'index.db'}: what SQLite says; ")
    assert fix in said


def test_of_an_index_whose_disk_cannot_be_asked_the_general_words_are_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert files.explain(gone, of_the_index(sqlite3.SQLITE_FULL)).endswith("; mend that, or name another with --data-path")


def test_an_error_about_the_folder_itself_names_it_once(tmp_path: Path) -> None:
    said = files.explain(tmp_path, OSError(errno.EACCES, "Permission denied", str(tmp_path)))
    assert said == f"the data folder {tmp_path} cannot be used: Permission denied; {files._NOT_OURS}"
    other = files.explain(tmp_path, OSError(errno.EMFILE, "Too many open files", str(tmp_path / "lock")))
    assert other.endswith(f"{tmp_path / 'lock'}: Too many open files; raise the limit of open files (ulimit -n)")
    assert files.explain(tmp_path, OSError("no number")).endswith("cannot be used: no number; " + files._OTHERWISE)


def test_an_error_that_names_its_file_keeps_that_name(tmp_path: Path) -> None:
    for named, expected in ((None, str(tmp_path)), ("other", "other")):
        with pytest.raises(OSError, match="full") as raised, files.naming(tmp_path):
            raise OSError(errno.ENOSPC, "full", named)
        assert raised.value.filename == expected


def test_a_segment_s_name_is_a_number_that_the_index_can_hold() -> None:
    names = ["0000000001.log", "1.log", f"{'9' * 18}.log", f"{'9' * 19}.log", f"{'0' * 19}.log", "\u0661.log", "-1.log", ".log"]
    assert [segments.number_of(Path(name)) for name in names] == [1, 1, 10**18 - 1, *[None] * 5]


def row(topic: int, first: int, n: int, dead: int = 0) -> Row:
    return Row(topic, first, n, dead, 1, 0, 0)


def test_rows_whose_numbers_follow_each_other_are_one_run_up_to_ten_thousand_messages() -> None:
    """More than that would be counted in one go, while nothing else is done."""
    step, far = 2500, 1 << 31
    rows = [row(far, 7 + number * step, step) for number in range(6)]
    assert list(lostend.runs(rows)) == [(far, 7, 7 + 4 * step, 0), (far, 7 + 4 * step, 7 + 6 * step, 0)]
    assert list(lostend.runs([row(1, far + 10, 5), row(1, far + 15, 5), row(1, far + 20, 1)])) == [(1, far + 10, far + 21, 0)]
    assert list(lostend.runs([])) == []


@pytest.mark.parametrize("second", [row(2, 6, 5), row(1, 7, 5), row(1, 5, 5), row(1, 6, 5, dead=1)])
def test_another_topic_a_gap_an_overlap_or_another_fate_begins_another_run(second: Row) -> None:
    first = row(1, 1, 5)
    assert list(lostend.runs([first, second])) == [(1, 1, 6, 0), (second.topic, second.first, second.first + 5, second.dead)]
