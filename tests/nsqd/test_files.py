"""Files of the data folder: who may read them, and what is said of one that cannot be used. No nsqd runs here."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd.store import files, lostend, segments
from framework.nsqd.store.folder import ReadOnlyFolder
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


def test_who_only_looks_says_where_damaged_bytes_would_be_kept_and_keeps_none(tmp_path: Path) -> None:
    looked_at: Any = SimpleNamespace(path=tmp_path)
    assert ReadOnlyFolder.set_aside(looked_at, "1-20", b"damaged") == tmp_path / "bad" / "1-20"
    assert not ReadOnlyFolder.has_set_aside(looked_at, "1-20", b"damaged")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "1-20").write_bytes(b"damaged")
    assert [ReadOnlyFolder.has_set_aside(looked_at, "1-20", data) for data in (b"damaged", b"other")] == [True, False]


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


class Calls:
    """What is asked of the system for files, and of which file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: list[tuple[str, bytes | None]] = []
        """Each with what it held then; of a folder None."""
        self.allocated: list[tuple[int, int, bool]] = []
        """From where, how many bytes, and whether the file had no name any more."""
        self.error: OSError | None = None
        monkeypatch.setattr(os, "fsync", self._sync)
        monkeypatch.setattr(os, "posix_fallocate", self._allocate)
        self._before = len(os.listdir("/dev/fd"))

    def _sync(self, fd: int) -> None:
        assert not os.get_inheritable(fd)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        self.synced.append((path.name, None if path.is_dir() else path.read_bytes()))
        if self.error is not None:
            raise self.error

    def _allocate(self, fd: int, offset: int, size: int) -> None:
        assert not os.get_inheritable(fd)
        self.allocated.append((offset, size, os.fstat(fd).st_nlink == 0))
        os.pwrite(fd, b"x", 0)
        if self.error is not None:
            raise self.error

    @property
    def left_open(self) -> int:
        return len(os.listdir("/dev/fd")) - self._before


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture
def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def test_the_names_in_a_folder_are_synced(tmp_path: Path, calls: Calls, full: OSError) -> None:
    files.sync_folder(tmp_path)
    assert (calls.synced, calls.left_open) == ([(tmp_path.name, None)], 0)
    calls.error = full
    with pytest.raises(OSError, match=str(tmp_path)):
        files.sync_folder(tmp_path)
    assert calls.left_open == 0


def test_a_file_is_synced_once_all_of_it_is_written(tmp_path: Path, calls: Calls) -> None:
    path = tmp_path / "meta.json"
    for content in (b"the first is longer", b"second"):
        files.write_synced(path, content)
        assert path.read_bytes() == content
        assert calls.synced.pop() == ("meta.json", content)
    assert (stat.S_IMODE(path.stat().st_mode), calls.left_open) == (0o600, 0)


def test_a_file_that_cannot_be_synced_is_not_there(tmp_path: Path, calls: Calls, full: OSError) -> None:
    path, calls.error = tmp_path / "meta.json", full
    with pytest.raises(OSError, match="No space") as raised:
        files.write_synced(path, b"content")
    assert (raised.value.filename, path.exists(), calls.left_open) == (str(path), False, 0)


def test_whether_there_is_room_is_asked_with_a_file_that_has_no_name(tmp_path: Path, calls: Calls, full: OSError) -> None:
    path = tmp_path / "probe"
    files.check_room(path, 1 << 20)
    calls.error = full
    with pytest.raises(OSError, match="No space") as raised:
        files.check_room(path, 5)
    assert calls.allocated == [(0, 1 << 20, True), (0, 5, True)]
    assert (raised.value.filename, list(tmp_path.iterdir()), calls.left_open) == (str(path), [], 0)


def test_files_and_folders_are_no_odd_files_and_all_else_is(tmp_path: Path) -> None:
    for name in ("meta.json", "lock", "other"):
        (tmp_path / name).touch()
    for name in ("clock", "log"):
        (tmp_path / name).mkdir()
    (tmp_path / "reserve").symlink_to("/nowhere")
    os.mkfifo(tmp_path / "log" / "notes")
    os.mkfifo(tmp_path / "own")
    assert files.odd_file(tmp_path) is None
    os.mkfifo(tmp_path / "log" / "7.log")
    assert files.odd_file(tmp_path) == tmp_path / "log" / "7.log"
    for name in reversed(files._NAMES):
        (tmp_path / name).is_dir() and (tmp_path / name).rmdir()
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
        assert files.odd_file(tmp_path) == tmp_path / name


def test_a_folder_is_made_for_this_user_alone_and_one_that_is_there_becomes_so(tmp_path: Path) -> None:
    path = tmp_path / "data"
    for _ in range(2):
        files.make_folder(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        path.chmod(0o755)


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
