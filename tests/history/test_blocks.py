"""What is written of messages and found again, without a worker: blocks, runs, what fits a search, which files are refused."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from framework.errors import WrongUse
from framework.history import rows, searching, store
from framework.history.rows import NONE, Entry, Run, entries_of, pack, pack_runs, rows_of, run_of, unpack, unpack_runs
from framework.history.searching import search
from framework.history.store import APPLICATION, BADLY, RUNS, VERSION, WELL, Foreign, Store
from framework.hooks import Finished

NOW = 1_700_000_000.0


def entry(number: int, outcome: str = "finished", error: tuple[str, str] = NONE, *, handler: str = "orders/billing") -> Entry:
    return b"%d" % number, handler, "n:1", 1, outcome, error, NOW + number, NOW + number + 0.5


def run(
    *ids: bytes, began: float = NOW, until: float = NOW + 6.0, together: bool = False, handler: str = "orders/billing"
) -> Run:
    made = run_of(handler, Finished("n:1", 2, list(ids), began, until, together))
    assert made is not None
    return made


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Store]:
    one = Store(tmp_path / "history.db", age=1e12, size=1 << 30)
    yield one
    one.close()


def blocks(file: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as db:
        return db.execute("SELECT first, last, well, handlers FROM blocks ORDER BY number").fetchall()


# --- rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False])
def test_the_messages_of_a_run_began_one_after_another_or_all_at_once(together: bool) -> None:
    found = list(rows_of(run(b"a", b"b", b"c", together=together)))
    assert [(one.id, one.handler, one.node, one.attempt, one.outcome) for one in found] == [
        (id_, "orders/billing", "n:1", 2, "finished") for id_ in "abc"
    ]
    assert [one.started - NOW for one in found] == ([0.0] * 3 if together else [0.0, 2.0, 4.0])
    assert [one.seconds for one in found] == ([6.0] * 3 if together else [2.0] * 3)


def test_ids_of_several_lines_make_no_run_and_are_kept_one_by_one() -> None:
    odd = Finished("n:1", 2, [b"a\nb", b"c"], NOW, NOW + 4.0, False)
    assert run_of("orders/billing", odd) is None
    assert [(one[0], one[6] - NOW, one[7] - NOW) for one in entries_of("orders/billing", odd)] == [
        (b"a\nb", 0.0, 2.0), (b"c", 2.0, 4.0)
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_block_is_read_as_it_was_packed_whether_its_rows_are_alike_or_not(count: int) -> None:
    alike = [entry(7)] * count
    other = [entry(number, "dead", ("shop.Error", f"{number}")) for number in range(count)]
    assert unpack(pack(alike)) == [rows.row_of(one) for one in alike]
    assert unpack(pack(other)) == [rows.row_of(one) for one in other]
    assert unpack_runs(pack_runs([run(b"a", b"b")] * count)) == [run(b"a", b"b")] * count
    for broken in (b"", b"no block", pack(alike)[:-1]):
        for read in (unpack, unpack_runs):
            with pytest.raises(ValueError, match="is no block of a history"):
                read(broken)


def test_a_row_has_the_seconds_from_its_start_and_none_where_the_clock_was_set_back() -> None:
    assert rows.row_of((b"\xff", "a/b", "n:1", 1, "dead", ("E", "w"), NOW, NOW + 1.23456789)).seconds == 1.234568
    assert rows.row_of((b"x", "a/b", "n:1", 1, "dead", NONE, NOW, NOW - 9.0)).seconds == 0.0


# --- blocks ------------------------------------------------------------------------------------------------


def test_what_went_well_is_apart_from_the_rest_and_runs_are_apart_from_both(kept: Store, tmp_path: Path) -> None:
    kept.write([entry(5), run(b"a", b"b"), entry(3, "dead", handler="a/b"), entry(1), run(b"c", handler="c/d", until=NOW + 9.0)])
    handlers = [json.dumps(each) for each in (["orders/billing"], ["a/b"], ["c/d", "orders/billing"])]
    assert blocks(tmp_path / "history.db") == [
        (NOW + 1, NOW + 5, WELL, handlers[0]), (NOW + 3, NOW + 3, BADLY, handlers[1]), (NOW, NOW + 9, RUNS, handlers[2])
    ]  # fmt: skip


def test_a_block_has_no_more_than_may_be_read_at_once(kept: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BLOCK", 3)
    kept.write([entry(number) for number in range(7)])
    assert [one[:2] for one in blocks(tmp_path / "history.db")] == [(NOW, NOW + 2), (NOW + 3, NOW + 5), (NOW + 6, NOW + 6)]
    kept.write([run(b"%d" % number, b"x", until=NOW + number) for number in range(5)])
    assert [one[1] - NOW for one in blocks(tmp_path / "history.db")[3:]] == [1, 3, 4], "when there are as many, or more"
    kept.write([])
    assert len(blocks(tmp_path / "history.db")) == 6


# --- searches ----------------------------------------------------------------------------------------------


@pytest.fixture
def file(kept: Store, tmp_path: Path) -> Path:
    kept.write([entry(number) for number in range(3)])
    kept.write([
        entry(10, "dead", ("shop.NoSuchOrder", "order 7 of ACME")), entry(11, "requeued", ("ValueError", "odd"), handler="a/b"),
        entry(12, "lease_lost", handler="orders/mail"),
    ])  # fmt: skip
    kept.write([run(b"20", b"21", b"212", began=NOW + 20, until=NOW + 26), run(b"\xc3\xbc", began=NOW + 30, handler="a/b")])
    return tmp_path / "history.db"


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({}, ["ü", "212", "21", "20", "12", "11", "10", "2", "1", "0"]),
        ({"limit": 4}, ["ü", "212", "21", "20"]),
        ({"limit": 0}, []),
        ({"limit": -1}, []),
        ({"id": "2"}, ["2"]),
        ({"id": "21"}, ["21"]),
        ({"id": "ü"}, ["ü"]),
        ({"id": "99"}, []),
        ({"handler": "orders/billing"}, ["212", "21", "20", "10", "2", "1", "0"]),
        ({"handler": "orders/*", "limit": 2}, ["212", "21"]),
        ({"handler": "*/b"}, ["ü", "11"]),
        ({"handler": "ORDERS/*"}, []),
        ({"outcome": "finished"}, ["ü", "212", "21", "20", "2", "1", "0"]),
        ({"outcome": "dead"}, ["10"]),
        ({"outcome": "lease_lost"}, ["12"]),
        ({"outcome": "lost"}, []),
        ({"exception": "nosuch"}, ["10"]),
        ({"exception": "acme"}, ["10"]),
        ({"exception": "NoSuchOrder: order"}, ["10"]),
        ({"exception": "e", "outcome": "requeued"}, ["11"]),
        ({"since": NOW + 11, "before": NOW + 22}, ["20", "12", "11"]),
        ({"since": NOW + 24}, ["ü", "212"]),
        ({"before": NOW + 1}, ["0"]),
        ({"outcome": "finished", "handler": "a/*", "since": NOW}, ["ü"]),
    ],
)
def test_what_fits_all_that_is_given_is_found_the_latest_first(given: dict[str, Any], ids: list[str], file: Path) -> None:
    assert [row["id"] for row in search(file, **given)] == ids


def test_a_found_row_says_all_that_is_known(file: Path) -> None:
    assert search(file, id="10") == [{
        "id": "10", "handler": "orders/billing", "node": "n:1", "attempt": 1, "outcome": "dead", "exception": "shop.NoSuchOrder",
        "words": "order 7 of ACME", "started": NOW + 10, "seconds": 0.5,
    }]  # fmt: skip


def test_a_look_for_the_last_few_opens_no_block_that_is_older(
    kept: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(0, 50, 5):
        kept.write([entry(number) for number in range(first, first + 5)])
    opened: list[bytes] = []
    monkeypatch.setattr(searching, "unpack", lambda data: (opened.append(data), unpack(data))[1])
    assert [row["id"] for row in search(tmp_path / "history.db", limit=7)] == [f"{number}" for number in range(49, 42, -1)]
    assert len(opened) == 2
    opened.clear()
    assert len(search(tmp_path / "history.db", limit=5)) == 5
    assert len(opened) == 1
    opened.clear()
    assert len(search(tmp_path / "history.db", handler="a/b")) == len(opened) == 0, "it says whose rows it has"
    assert len(search(tmp_path / "history.db", since=NOW + 40)) == 10
    assert len(opened) == 2


def test_rows_that_overlap_in_blocks_are_found_in_their_order(kept: Store, tmp_path: Path) -> None:
    """Several processes write, each what ended in its quarter of a second."""
    kept.write([entry(number) for number in (1, 2, 9)])
    kept.write([entry(number) for number in (3, 4, 8)])
    assert [row["id"] for row in search(tmp_path / "history.db", limit=3)] == ["9", "8", "4"]
    assert [row["id"] for row in search(tmp_path / "history.db", limit=5)] == ["9", "8", "4", "3", "2"]
    kept.write([entry(number) for number in (5, 99)])
    assert [row["id"] for row in search(tmp_path / "history.db", limit=2)] == ["99", "9"]


# --- files -------------------------------------------------------------------------------------------------


def test_a_file_of_a_later_version_is_neither_read_nor_written(file: Path, kept: Store) -> None:
    kept.close()
    with closing(sqlite3.connect(file)) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
        [(application,)] = db.execute("PRAGMA application_id").fetchall()
    assert application == APPLICATION
    with pytest.raises(Foreign, match="was written by a later version"):
        kept.write([entry(1)])
    with pytest.raises(WrongUse, match=r"cannot be read: .* was written by a later version"):
        search(file)


def test_a_block_that_is_none_is_said(file: Path, kept: Store) -> None:
    kept.close()
    with closing(sqlite3.connect(file)) as db:
        db.execute("UPDATE blocks SET rows = x'00' WHERE well = 1")
        db.commit()
    with pytest.raises(WrongUse, match="cannot be read: is no block of a history"):
        search(file)
    assert len(search(file, outcome="dead")) == 1


def test_of_a_file_that_is_set_aside_all_parts_go_and_once(file: Path, kept: Store) -> None:
    there = {one.name for one in file.parent.iterdir()}
    assert there == {"history.db", "history.db-wal", "history.db-shm"}
    moved = kept.set_aside()
    assert moved is not None
    assert moved.name.startswith("history.db.corrupt-2")
    assert not file.exists()
    assert moved.exists()
    assert kept._db is None, "who looks into it may do with it what he likes"
    assert kept.set_aside() is None, "another has done so"
    kept.write([entry(1)])
    assert len(search(file)) == 1


def test_who_begins_a_file_or_sets_it_aside_waits_for_another_who_does(kept: Store, file: Path) -> None:
    def waits(does: Callable[[], object]) -> bool:
        folder = os.open(file.parent, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)
        doing = threading.Thread(target=does)
        doing.start()
        doing.join(0.05)
        waited = doing.is_alive()
        os.close(folder)
        doing.join(20)
        return waited and not doing.is_alive()

    kept.close()
    assert waits(lambda: kept.write([entry(1)]))
    assert waits(kept.set_aside)


def test_what_fails_in_the_middle_leaves_nothing_of_it(kept: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.write([entry(1)])

    def fails(*_: object) -> float:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(kept, "_prune", fails)
        with pytest.raises(ZeroDivisionError):
            kept.write([entry(2)])
    kept.write([entry(3)])
    assert [row["id"] for row in search(tmp_path / "history.db")] == ["3", "1"]


@pytest.mark.parametrize(("jump", "held"), [(60.0, False), (-60.0, False), (60.5, True), (-60.5, True)])
def test_for_an_hour_after_a_clock_was_set_by_more_than_a_minute_nothing_goes_for_its_age(
    jump: float, held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall, monotonic = NOW, 1000.0
    monkeypatch.setattr(store.time, "time", lambda: wall)
    monkeypatch.setattr(store.time, "monotonic", lambda: monotonic)
    one = Store(tmp_path / "history.db", age=3600, size=1 << 30)
    wall += jump
    assert one._clock_is_sound() is not held
    for passed, sound in ((store.HELD - 1, not held), (1, True)):
        wall, monotonic = wall + passed, monotonic + passed
        assert one._clock_is_sound() is sound


def test_the_file_gives_back_what_is_free_where_that_is_much(kept: Store, tmp_path: Path) -> None:
    file, said = tmp_path / "history.db", []
    for part in range(30):
        kept.write([entry(number, "dead", ("E", f"{part}-{number * 7919}")) for number in range(500)])
    assert kept._db is not None
    kept._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    large = file.stat().st_size
    kept._db.set_trace_callback(said.append)
    kept.write([entry(1)])
    assert not [line for line in said if "vacuum" in line], "what comes next takes the place"
    kept._age = -1e12
    kept.write([entry(1)])
    kept._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert file.stat().st_size < large / 4


def test_what_is_older_than_the_age_goes_and_nothing_younger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.time, "time", lambda: NOW + 100)
    one = Store(tmp_path / "history.db", age=50, size=1 << 30)
    for number in (49, 50, 51):
        one.write([entry(number)])
    one.close()
    assert [row["id"] for row in search(tmp_path / "history.db")] == ["51", "50"]
