"""The stores of keys: one claim at a time, whoever asks; what is kept, for how long, and what a kill leaves."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import gevent
import pytest

from framework.dedupe import sqlite, store
from framework.dedupe.sqlite import SqliteStore
from framework.dedupe.store import MemoryStore


@pytest.fixture(params=["memory", "file"])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryStore(100.0, 1000) if request.param == "memory" else SqliteStore(tmp_path / "seen.sqlite", 100.0)


def test_a_key_is_claimed_by_one_until_it_is_done_or_released(keys: Any) -> None:
    assert keys.claim(["a", "b"], "one", 60) == ["new", "new"]
    assert keys.claim(["a", "c"], "two", 60) == ["claimed", "new"]
    keys.release(["a"], "two")  # which is not its own
    assert keys.claim(["a"], "two", 60) == ["claimed"]
    keys.done(["a"], "one")
    keys.release(["b"], "one")
    assert keys.claim(["a", "b"], "two", 60) == ["done", "new"]
    keys.release(["a"], "one")
    assert keys.claim(["a"], "three", 60) == ["done"], "what was handled stays so"


def test_what_is_older_than_its_age_is_forgotten(keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    keys.claim(["a"], "one", 60)
    keys.done(["a"], "one")
    for module, name in ((sqlite, "time"), (store, "monotonic")):
        clock = getattr(module, name)
        monkeypatch.setattr(module, name, lambda clock=clock: clock() + 99)
    assert keys.claim(["a"], "two", 60) == ["done"]
    for module, name in ((sqlite, "time"), (store, "monotonic")):
        clock = getattr(module, name)
        monkeypatch.setattr(module, name, lambda clock=clock: clock() + 2)
    assert keys.claim(["a"], "two", 60) == ["new"]
    assert time.time() - now < 50


def test_in_memory_only_the_newest_are_kept() -> None:
    keys = MemoryStore(100.0, 3)
    for name in "abcad":
        keys.done([name], "one")
    assert keys.claim(["a", "b", "c", "d"], "two", 60) == ["done", "new", "done", "done"]


def test_of_the_file_what_is_too_old_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = SqliteStore(tmp_path / "seen.sqlite", 100.0)
    monkeypatch.setattr(sqlite, "FORGET_AT_ONCE", 10)
    keys.done([str(number) for number in range(25)], "one")
    monkeypatch.setattr(sqlite, "time", lambda: time.time() + 101)
    for name in "abc":
        keys.done([name], "one")
    found = keys._connected().execute("select key from keys order by key").fetchall()
    assert found == [("a",), ("b",), ("c",)]


def test_a_claim_whose_process_was_killed_ends_by_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = SqliteStore(tmp_path / "seen.sqlite", 100.0)
    keys.claim(["a"], "killed", 60)
    monkeypatch.setattr(sqlite, "time", lambda: time.time() + 59)
    assert keys.claim(["a"], "two", 60) == ["claimed"]
    monkeypatch.setattr(sqlite, "time", lambda: time.time() + 61)
    assert keys.claim(["a"], "two", 60) == ["new"]
    keys.release(["a"], "killed")
    assert keys.claim(["a"], "three", 60) == ["claimed"]
    keys.done(["a"], "killed")  # a call that outlived its claim
    assert keys.claim(["a"], "three", 60) == ["done"]


def _claim_all(path: Path, name: str, keys: list[str]) -> Counter[str]:
    mine = SqliteStore(path, 100.0)
    won = Counter(key for key in keys if mine.claim([key], name, 60) == ["new"])
    mine.close()
    return won


def test_of_several_processes_and_threads_one_gets_each_key(tmp_path: Path) -> None:
    path, asked = tmp_path / "seen.sqlite", [str(number) for number in range(200)]
    SqliteStore(path, 100.0).open()
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        won = sum(pool.starmap(_claim_all, [(path, str(number), asked) for number in range(3)]), Counter())
    assert won == dict.fromkeys(asked, 1)
    shared, by_threads = SqliteStore(path, 100.0), Counter[str]()

    def ask(name: str) -> None:
        by_threads.update(key for key in asked if shared.claim([f"t{key}"], name, 60) == ["new"])

    threads = [threading.Thread(target=ask, args=(str(number),)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert by_threads == dict.fromkeys(asked, 1)


def _opened_and_claimed(path: Path, at: float, name: str) -> str:
    time.sleep(max(0.0, at - time.time()))
    mine = SqliteStore(path, 100.0)
    mine.open()
    return mine.claim(["a"], name, 60)[0]


def test_processes_that_start_together_can_make_the_file(tmp_path: Path) -> None:
    """Each waited for the others' locks, until one was told that the file is locked, and its worker did not start."""
    with multiprocessing.get_context("fork").Pool(6) as pool:
        for number in range(40):
            there = tmp_path / f"{number}.sqlite"
            at = time.time() + 0.02
            found = pool.starmap(_opened_and_claimed, [(there, at, str(who)) for who in range(6)], chunksize=1)
            assert Counter(found) == {"new": 1, "claimed": 5}


def _done_and_killed(path: Path) -> None:
    keys = SqliteStore(path, 100.0)
    keys.claim(["a", "b"], "killed", 60)
    keys.done(["a"], "killed")
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_was_done_is_kept_by_a_kill(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_done_and_killed, args=(tmp_path / "seen.sqlite",))
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert SqliteStore(tmp_path / "seen.sqlite", 100.0).claim(["a", "b"], "two", 60) == ["done", "claimed"]


def test_no_cursor_leaves_the_thread_that_writes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end resets a statement, which the next commit may be running: seen as `bad parameter or other API misuse`."""
    keys = SqliteStore(tmp_path / "seen.sqlite", 100.0)
    answers: list[Any] = []
    do = keys._do
    monkeypatch.setattr(keys, "_do", lambda *work: answers.append(do(*work)) or answers[-1])
    keys.claim(["a", "b"], "one", 60)
    keys.done(["a"], "one")
    keys.release(["b"], "one")
    assert answers == [["new", "new"], None, None]


def test_many_greenlets_share_the_file(tmp_path: Path) -> None:
    keys = SqliteStore(tmp_path / "seen.sqlite", 100.0)
    numbers = iter(range(4_000))
    found = Counter[str]()

    def work() -> None:
        for number in numbers:
            found.update(keys.claim([f"{number}"], f"t{number}", 60))
            (keys.release if number % 2 else keys.done)([f"{number}"], f"t{number}")

    gevent.joinall([gevent.spawn(work) for _ in range(50)], raise_error=True)
    assert found == {"new": 4_000}
    assert keys.claim(["0", "1", "3998", "3999"], "after", 60) == ["done", "new", "done", "new"]


def test_an_error_of_the_file_is_told_to_whoever_asked_and_the_next_may_succeed(tmp_path: Path) -> None:
    keys = SqliteStore(tmp_path / "later" / "seen.sqlite", 100.0)
    with pytest.raises(Exception, match="unable to open"):
        keys.claim(["a"], "one", 60)
    (tmp_path / "later").mkdir()
    assert keys.claim(["a"], "one", 60) == ["new"]


def test_old_keys_are_looked_for_now_and_then_and_the_next_goes_on_where_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_700_000_000.0
    monkeypatch.setattr(sqlite, "time", lambda: now)
    monkeypatch.setattr(sqlite, "FORGET_AT_ONCE", 3)
    keys = SqliteStore(tmp_path / "seen.sqlite", 100.0)
    keys.open()
    said: list[str] = []
    keys._connected().set_trace_callback(said.append)

    def looks() -> int:
        said.clear()
        keys.release(["none"], "one")
        return sum("until <=" in line for line in said)

    assert [looks() for _ in range(3)] == [1, 0, 0]
    keys.done(["a", "b", "c", "d"], "one")
    for passed, found in ((sqlite.FORGET_EVERY - 1, 0), (1, 1), (1, 0), (-sqlite.FORGET_EVERY - 1, 1), (100, 1), (0, 1), (0, 0)):
        now += passed
        assert looks() == found
    assert keys._connected().execute("select count(*) from keys").fetchall() == [(0,)]


@pytest.mark.parametrize(("code", "again"), [(sqlite3.SQLITE_BUSY, True), (sqlite3.SQLITE_CANTOPEN, False)])
def test_a_file_that_others_make_is_waited_for_and_one_that_cannot_be_is_not(
    code: int, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "PATIENCE", 0.1)
    monkeypatch.setattr(sqlite, "_sleep", lambda _: None)
    opened: list[Any] = []

    class Refusing:
        def execute(self, *_: object) -> None:
            error = sqlite3.OperationalError("no")
            error.sqlite_errorcode = code
            raise error

        def close(self) -> None:
            opened.append(self)

    monkeypatch.setattr(sqlite.sqlite3, "connect", lambda *_, **__: Refusing())
    began = time.monotonic()
    with pytest.raises(sqlite3.OperationalError):
        SqliteStore(tmp_path / "seen.sqlite", 100.0)._opened()
    assert (len(opened) > 1) is again
    assert 0.1 * again <= time.monotonic() - began < 20


def test_a_call_that_sqlite_does_not_take_costs_those_beside_it_nothing(tmp_path: Path) -> None:
    keys = SqliteStore(tmp_path / "seen.sqlite", 100.0)

    def odd(_: sqlite3.Connection) -> None:
        raise ValueError("it takes none of these")

    def claim(key: str) -> Any:
        return lambda database: sqlite._claim(database, key, "one", 0.0, 1e12)

    some = [sqlite._Work(does) for does in (claim("a"), odd, claim("b"))]
    keys._waiting.extend(some)
    keys._commit()
    assert [(work.result, work.over, work.error is None) for work in some] == [
        ("new", True, True), (None, True, False), ("new", True, True)
    ]  # fmt: skip
    assert keys.claim(["a", "b"], "two", 60) == ["claimed", "claimed"]
