"""The file of keys and what others do to it: it is removed or replaced, it is another program's, and it is locked for long."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from framework.dedupe import sqlite
from framework.dedupe.sqlite import SqliteStore
from framework.errors import WrongUse


def _store(path: Path) -> SqliteStore:
    return SqliteStore(path, 100.0)


def _removed(path: Path) -> None:
    for name in ("", "-wal", "-shm"):
        Path(f"{path}{name}").unlink(missing_ok=True)


def _replaced(path: Path) -> None:
    fresh = path.with_name("fresh.sqlite")
    store = _store(fresh)
    store.open()
    store.close()
    _removed(path)
    os.rename(fresh, path)


@pytest.mark.parametrize("gone", [_removed, _replaced])
def test_who_has_a_file_that_is_gone_goes_on_with_what_has_its_name(
    gone: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of two workers had a file of its own: of 300 keys 163 were handled twice, and nobody said a word."""
    path = tmp_path / "seen.sqlite"
    old = _store(path)
    assert old.claim(["a"], "one", 60) == ["new"]
    gone(path)
    new = _store(path)
    assert new.claim(["b"], "two", 60) == ["new"]
    assert old.claim(["b", "c"], "one", 60) == ["claimed", "new"]
    old.done(["a"], "one")
    assert new.claim(["a", "c"], "two", 60) == ["done", "claimed"]
    [said] = [one for one in caplog.records if one.name == "framework.dedupe.sqlite"]
    assert (said.levelno, str(path) in said.getMessage()) == (logging.WARNING, True)
    assert "removed or replaced under this worker" in said.getMessage()
    assert "stop all workers before" in said.getMessage()


def test_what_was_written_while_its_file_went_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "seen.sqlite"
    old = _store(path)
    old.open()
    times = []

    def claim(database: sqlite3.Connection) -> Any:
        times.append(1)
        if len(times) == 1:
            _removed(path)
            _store(path).open()
        return sqlite._claim(database, "a", "one", 0.0, 1e12)

    assert old._do(claim) == "new"
    assert len(times) == 2
    assert _store(path).claim(["a"], "two", 60) == ["claimed"]


def test_of_two_files_that_change_places_while_it_is_opened_the_later_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "seen.sqlite"
    _store(path).open()
    connect, opened = sqlite3.connect, []

    def swapped(*given: Any, **options: Any) -> sqlite3.Connection:
        database = connect(*given, **options)
        opened.append(database)
        if len(opened) == 1:
            _replaced(path)  # which opens one, too
        return database

    monkeypatch.setattr(sqlite.sqlite3, "connect", swapped)
    late = _store(path)
    late.done(["a"], "one")
    monkeypatch.undo()
    assert _store(path).claim(["a"], "two", 60) == ["done"]


def test_a_folder_that_goes_fails_the_call_and_one_that_comes_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    keys = _store(folder / "seen.sqlite")
    keys.done(["a"], "one")
    folder.rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match="unable to open"):
            keys.claim(["a"], "two", 60)
    (tmp_path / "away").rename(folder)
    assert keys.claim(["a"], "two", 60) == ["done"]
    assert len(caplog.records) == 1, "of one removal it is said once"


def test_who_closes_it_may_find_another_later_and_has_nothing_to_say(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "seen.sqlite"
    keys = _store(path)
    keys.open()
    keys.close()
    _removed(path)
    assert keys.claim(["a"], "one", 60) == ["new"]
    assert caplog.records == []


@pytest.mark.parametrize("columns", ["a, b", "key, until, token, more"])
def test_a_file_of_another_program_is_refused_and_stays_as_it_was(columns: str, tmp_path: Path) -> None:
    """It was switched to a log of its own, which stays in force for the other program, and then refused."""
    path = tmp_path / "app.sqlite"
    other = sqlite3.connect(path)
    other.execute(f"create table keys ({columns})")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(WrongUse, match=rf"app\.sqlite'\): it is another program's.* columns {columns}: give a file of its own"):
        _store(path).open()
    assert (path.read_bytes() == before, os.listdir(tmp_path)) == (True, ["app.sqlite"])


# -- locked


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SqliteStore, sqlite3.Connection, list[int]]]:
    """A store with a claim of the key a by one, what locks its file, and a mark for each commit that was tried."""
    monkeypatch.setattr(sqlite, "PATIENCE", 0.02)
    keys, tried = _store(tmp_path / "seen.sqlite"), list[int]()
    keys.claim(["a"], "one", 60)
    commit = keys._commit_all
    monkeypatch.setattr(keys, "_commit_all", lambda some: tried.append(len(some)) or commit(some))
    other = sqlite3.connect(keys.path, isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")
    yield keys, other, tried
    other.close()
    keys.close()


def _wait_for(met: Callable[[], bool]) -> None:
    with gevent.Timeout(30):
        while not met():
            gevent.sleep(0.005)


@pytest.mark.parametrize("in_thread", [False, True])
def test_what_was_handled_is_noted_when_the_lock_has_gone_and_a_claim_is_not_waited_for(in_thread: bool, locked: Any) -> None:
    """Of a file that was locked for 25 s, 40 of 400 calls were finished without a note, so that repeats were handled."""
    keys, other, tried = locked
    noting = (gevent.get_hub().threadpool.spawn if in_thread else gevent.spawn)(keys.done, ["a"], "one")
    _wait_for(lambda: len(tried) >= 3)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        keys.claim(["b"], "two", 60)
    assert not noting.ready()
    other.execute("rollback")
    noting.get(timeout=30)
    assert keys.claim(["a", "b"], "two", 60) == ["done", "new"]


def test_a_lock_for_longer_than_a_minute_is_told(locked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, _, tried = locked
    now = [0.0]
    monkeypatch.setattr(sqlite, "monotonic", lambda: now[0])
    noting = gevent.spawn(keys.done, ["a"], "one")
    _wait_for(lambda: len(tried) >= 2)
    now[0] = sqlite.NOTE_PATIENCE - 0.1
    count = len(tried)
    _wait_for(lambda: len(tried) >= count + 2)
    assert not noting.ready()
    now[0] = sqlite.NOTE_PATIENCE
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        noting.get(timeout=30)


def test_a_release_is_not_tried_again_as_its_claim_ends_by_itself(locked: Any) -> None:
    keys, _, tried = locked
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        keys.release(["a"], "one")
    assert len(tried) == 1


def test_a_note_whose_caller_has_gone_is_made_before_the_next_claim(locked: Any) -> None:
    keys, other, tried = locked
    noting = gevent.spawn(keys.done, ["a"], "one")
    _wait_for(lambda: len(tried) >= 2)
    noting.kill()
    _wait_for(lambda: bool(keys._waiting))
    other.execute("rollback")
    assert keys.claim(["a"], "one", 60) == ["done"]
