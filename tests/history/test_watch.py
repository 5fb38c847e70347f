"""What is handed over of how messages end, and how it waits for the thread that writes: without a file."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import Retry, Skip
from framework.handler import make_spec
from framework.history import watched, writer
from framework.history.rows import NONE, Entry, Run
from framework.history.store import Foreign
from framework.history.watch import WORDS, Watch
from framework.history.writer import Writer
from framework.hooks import Finished
from framework.message import Batch, Message

ORIGIN: Any = SimpleNamespace(topic="orders", channel="billing", node="n:1")


class NoSuchOrder(Exception):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("its session has ended")


def bill(message: Message) -> None:
    """What is decorated."""


def message(number: int, attempts: int = 1) -> Message:
    return Message(b"%d" % number, 0, attempts, b"x", ORIGIN)


@pytest.fixture
def put() -> list[Any]:
    return []


@pytest.fixture
def watch(put: list[Any]) -> Watch:
    to: Any = SimpleNamespace(put=put.append)
    return Watch(make_spec(bill, "orders", "billing", {}), to)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, NONE),
        (ValueError("odd\nand more"), ("ValueError", "odd")),
        (ValueError(), ("ValueError", "")),
        (NoSuchOrder("7"), (f"{__name__}.NoSuchOrder", "7")),
        (ValueError("at nsq://user:hunter2@host:1/"), ("ValueError", "at nsq://host:1/")),
        (ValueError("x" * 999), ("ValueError", "x" * WORDS)),
        (ValueError("\ud800"), ("ValueError", "\\ud800")),
        (Unspeakable(), ("Unspeakable", "")),
    ],
)
def test_why_a_call_failed_is_told_with_how_its_message_ended(
    error: Exception | None, told: tuple[str, str], watch: Watch, put: list[Any]
) -> None:
    one, other = message(1, 3), message(2)
    watch.failed(one, error)
    watch.ended(other, "finished", 5.0)
    watch.ended(one, "dead", 5.0)
    watch.ended(one, "dead", 5.0)
    assert [entry[:7] for entry in put] == [
        (b"2", "orders/billing", "n:1", 1, "finished", NONE, 5.0), (b"1", "orders/billing", "n:1", 3, "dead", told, 5.0),
        (b"1", "orders/billing", "n:1", 3, "dead", NONE, 5.0),
    ]  # fmt: skip


def test_of_a_batch_each_has_the_error_of_the_batch_or_its_own(watch: Watch, put: list[Any]) -> None:
    some = [message(number) for number in range(3)]
    batch = Batch(some)
    batch.fail(some[1], NoSuchOrder("its own"))
    watch.failed(batch, ValueError("of all"))
    for one in some:
        watch.ended(one, "requeued", 5.0)
    assert [entry[5][1] for entry in put] == ["of all", "its own", "of all"]
    watch.failed(batch, None)
    for one in some:
        watch.ended(one, "requeued", 5.0)
    assert [entry[5][1] for entry in put[3:]] == ["", "its own", ""]


def finished(*numbers: int, attempts: int = 1, node: str = "n:1") -> Finished:
    return Finished(node, attempts, [b"%d" % number for number in numbers], 5.0, 6.0, False)


def test_many_that_were_finished_are_one_run_and_one_alone_is_none(watch: Watch, put: list[Any]) -> None:
    watch.finished(finished(1, 2, 3))
    watch.finished(finished(4))
    assert [type(one) is Run for one in put] == [True, False]
    assert (put[0].many, put[0].ids, put[1][0]) == (3, b"1\n2\n3", b"4")


def test_those_that_were_skipped_are_told_with_their_error_and_of_others_it_is_kept(watch: Watch, put: list[Any]) -> None:
    for number, attempts, error in ((1, 1, Skip("not ours")), (2, 2, Retry(delay=1)), (9, 1, Skip("of another run"))):
        watch.failed(message(number, attempts), error)
    watch.finished(finished(1, 2, 3))
    assert [(entry[0], entry[5][1]) for entry in put] == [(b"1", "not ours"), (b"2", ""), (b"3", "")]
    put.clear()
    watch.finished(finished(9, node="elsewhere"))
    watch.finished(finished(9))
    watch.finished(finished(9))
    assert [entry[5][1] for entry in put] == ["", "of another run", ""]


def test_it_is_around_all_else_and_only_in_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr("atexit.register", lambda *what: kept.append(what))
    monkeypatch.chdir(tmp_path)
    [spec] = watched([make_spec(bill, "orders", "billing", {})], Path("history.db"), age=1.0, size=1 << 20)
    [one] = spec.middleware
    assert isinstance(one, Watch)
    assert one.elsewhere() is None
    assert one._writer._path == tmp_path / "history.db", "a handler may change the folder"
    assert [(what[0], what[1] > 0) for what in kept] == [(one._writer.flush, True)]


# --- the writer --------------------------------------------------------------------------------------------


def entry(number: int) -> Entry:
    return b"%d" % number, "orders/billing", "n:1", 1, "finished", NONE, 1.0, 2.0


class File:
    """In the place of a ``Store``."""

    def __init__(self) -> None:
        self.writes: list[list[Any]] = []
        self.errors: list[Exception] = []
        self.closed = self.asides = 0
        self.moved_to: Path | None = Path("history.db.corrupt-1")

    def write(self, items: list[Any]) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.writes.append(list(items))

    def close(self) -> None:
        self.closed += 1

    def set_aside(self) -> Path | None:
        self.asides += 1
        return self.moved_to


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> tuple[Writer, File]:
    """Its thread does not run."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(writer, "_start_new_thread", lambda *_: None)
    one, file = Writer(tmp_path / "history.db", age=1.0, size=1 << 20), File()
    one._store = file  # type: ignore[assignment]
    return one, file


def test_no_more_is_written_at_once_than_may_be(written: tuple[Writer, File], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "TOGETHER", 3)
    one, _ = written
    for number in range(7):
        one.put(entry(number))
    assert [len(one._take()) for _ in range(4)] == [3, 3, 1, 0]
    assert one._put == one._taken > 0


def test_when_more_comes_than_memory_may_hold_the_oldest_goes(
    written: tuple[Writer, File], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = written
    monkeypatch.setattr(writer, "SIZE", 3 * writer._AN_ENTRY)
    for number in range(5):
        one.put(entry(number))
    assert ([item[0] for item in one.items], one._dropped) == ([b"2", b"3", b"4"], 2)
    one.put(Run("orders/billing", "n:1", 1, b"x" * 100, 50, 1.0, 2.0))
    assert (len(one.items), one._dropped) == (2, 4), "its ids take room as well"
    assert len(one._take()) == 2
    one.put(entry(7))
    assert len(one.items) == 1
    monkeypatch.setattr(writer, "SIZE", 1)
    one.put(Run("orders/billing", "n:1", 1, b"x" * 100, 50, 1.0, 2.0))
    assert (len(one.items), one._dropped) == (0, 4 + 1 + 50), "each message of a run is one"


def test_a_sleeper_is_woken_by_who_puts_and_once(written: tuple[Writer, File]) -> None:
    one, _ = written
    one.put(entry(1))
    assert not one._wake.acquire(blocking=False), "it is awake"
    one.asleep = True
    one.put(entry(2))
    one.ring()
    assert not one.asleep
    assert one._wake.acquire(blocking=False)
    assert not one._wake.acquire(blocking=False)


def test_it_begins_once_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(writer, "_start_new_thread", lambda *what: started.append(what))
    monkeypatch.setattr(os, "getpid", lambda: 1)  # a container's first
    one = Writer(tmp_path / "history.db", age=1.0, size=1 << 20)
    assert one.flush(60.0), "there is nobody to wait for"
    one.begin()
    one.put(entry(1))
    one.begin()
    assert (len(started), len(one.items)) == (1, 1)
    assert not one.flush(0.02)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert one.flush(60.0), "what waits is the parent's"
    one.begin()
    assert (len(started), len(one.items)) == (2, 0)


def test_a_file_that_fails_is_said_once_and_once_that_it_does_not_any_more_and_how_many_are_missing(
    written: tuple[Writer, File], caplog: pytest.LogCaptureFixture
) -> None:
    one, file = written
    run = Run("orders/billing", "n:1", 1, b"a\nb", 2, 1.0, 2.0)
    for missing in (3, 1):
        file.errors = [OSError("no disk")] * (2 if missing == 3 else 1)
        if missing == 3:
            one._write([run])
        one._write([entry(1)])
        one._write([entry(2)])
        one._write([entry(3)])
        failing, again = caplog.messages
        assert "cannot be written (OSError: no disk); what ends meanwhile is not kept" in failing
        assert again.endswith(f"is written again; {missing} messages that ended meanwhile are not in it")
        caplog.clear()
    assert file.closed == 3
    assert [len(items) for items in file.writes] == [1] * 4


def test_a_corrupt_file_is_set_aside_by_the_first_who_sees_it(
    written: tuple[Writer, File], caplog: pytest.LogCaptureFixture
) -> None:
    one, file = written
    corrupt = sqlite3.DatabaseError("malformed")
    corrupt.sqlite_errorname = "SQLITE_CORRUPT"
    for moved_to, lines in ((Path("history.db.corrupt-1"), 1), (None, 0)):
        file.errors, file.moved_to = [corrupt], moved_to
        one._write([entry(1)])
        assert len(caplog.messages) == lines
        caplog.clear()
    assert (file.asides, len(file.writes), file.closed) == (2, 2, 0)
    file.errors = [sqlite3.OperationalError("database is locked")]
    one._write([entry(1)])
    assert (file.asides, file.closed) == (2, 1)
    assert "OperationalError: database is locked" in caplog.text


def test_a_file_of_another_program_is_named_without_secrets(
    written: tuple[Writer, File], caplog: pytest.LogCaptureFixture
) -> None:
    one, file = written
    file.errors = [Foreign("s3://user:hunter2@host/x is of another")]
    one._write([entry(1)])
    assert "(s3://host/x is of another)" in caplog.text
    assert "Foreign" not in caplog.text


def test_that_less_is_written_than_comes_is_said(
    written: tuple[Writer, File], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, file = written
    write = file.write

    def late(items: list[Any]) -> None:
        write(items)
        one._dropped += 5

    monkeypatch.setattr(file, "write", late)
    one._write([entry(1)])
    assert "cannot be written (it takes less than comes)" in caplog.text
    monkeypatch.setattr(file, "write", write)
    one._write([entry(1)])
    assert "is written again; 5 messages" in caplog.text


def test_what_is_put_is_written_soon_and_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PERIOD", 0.05)
    one, file = Writer(tmp_path / "history.db", age=1.0, size=1 << 20), File()
    one._store = file  # type: ignore[assignment]
    one.begin()
    for number in range(3):
        one.put(entry(number))
    assert one.flush(20.0)
    assert [len(items) for items in file.writes] == [3]
    one.put(entry(4))
    assert one.flush(20.0)
    assert len(file.writes) == 2
