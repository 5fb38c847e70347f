"""The file of a history: SQLite with blocks of rows, bounded by age and size. Several processes write to one file.

A block is one write of one process: a row of the table for each message would cost more than most messages do.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from framework.history.rows import Entry, Item, Run, pack, pack_runs

log = logging.getLogger(__name__)

APPLICATION = 0x4E535148
"""``PRAGMA application_id``: "NSQH"."""
VERSION = 3
"""``PRAGMA user_version``: of the tables and the form of blocks."""
BLOCK = 4096
"""Rows of a block, at most, and of a block of runs, about: a look for the last hundred reads a whole one."""
BADLY, WELL, RUNS = 0, 1, 2
"""What is in a block: rows of which none was finished, or all; runs, which were."""
PATIENCE = 10.0
"""Seconds for which other processes that write are waited for."""

_TABLES = """
    CREATE TABLE IF NOT EXISTS blocks (
        number INTEGER PRIMARY KEY, first REAL NOT NULL, last REAL NOT NULL, well INTEGER NOT NULL, handlers TEXT NOT NULL,
        rows BLOB NOT NULL
    );
    CREATE INDEX IF NOT EXISTS by_time ON blocks (last);
"""

_OLDEST = "SELECT number, length(rows) FROM blocks ORDER BY number LIMIT 1000"
"""As they were written: what a clock that was ahead has dated is no younger."""

JUMP, HELD = 60.0, 3600.0
"""Seconds by which the clock may be set while a process runs; after more it deletes nothing for its age for so long: a clock that
is wrong for a moment would cost the whole history."""
LOOSE = 0.1
"""Which part of its size the file may have free."""


class Foreign(Exception):
    """The file is sound, and not one that this version may write."""


class Truncated(sqlite3.DatabaseError):
    """Somebody has cut the file off while it is written. SQLite notices nothing: it writes on into its journal."""

    sqlite_errorname = "SQLITE_CORRUPT"


class Store:
    """The file at ``path``, for writing. Raises what sqlite3 raises, and Foreign. Used in one thread."""

    def __init__(self, path: Path, *, age: float, size: int) -> None:
        self._path = path
        self._age = age
        self._size = size
        self._file: tuple[int, int] | None = None
        self._wall = time.time() - time.monotonic()
        self._held_until = 0.0
        self._db: sqlite3.Connection | None = None

    def write(self, items: Sequence[Item]) -> None:
        """All of them, or none where it raises; what is over the bounds goes."""
        if _identity(self._path) != self._file:  # removed, or set aside by another process
            self.close()
        if self._db is not None and not self._path.stat().st_size:
            raise Truncated("it was truncated")
        db = self._db or self._open()
        with _transaction(db):
            db.executemany("INSERT INTO blocks (first, last, well, handlers, rows) VALUES (?, ?, ?, ?, ?)", _blocks(items))
            free = self._prune(db)
        if free > LOOSE:  # else what comes next takes the place; to give it back each time cost more than to write
            db.executescript("PRAGMA incremental_vacuum")  # a step for each page, of which execute() makes the first alone

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()

    def set_aside(self) -> Path | None:
        """The file goes under another name; None where another process has done so before."""
        with _locked(self._path):
            same = _identity(self._path) == self._file
            self.close()
            if not same:
                return None
            moved_to = self._path.with_name(f"{self._path.name}.corrupt-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")
            for ending in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(f"{self._path}{ending}", f"{moved_to}{ending}")
            return moved_to

    def _open(self) -> sqlite3.Connection:
        self._path.touch()
        self._file = _identity(self._path)
        db = sqlite3.connect(self._path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            check(db, self._path)
            with _locked(self._path):  # of two that change the journal's mode at once, one is not patient
                db.execute("PRAGMA auto_vacuum = incremental")
                db.execute("PRAGMA journal_mode = wal")
                db.execute("PRAGMA synchronous = normal")
                db.execute(f"PRAGMA journal_size_limit = {max(1 << 20, self._size // 10)}")
                with _transaction(db):
                    for statement in _TABLES.split(";"):
                        db.execute(statement)
                    db.execute(f"PRAGMA application_id = {APPLICATION}")
                    db.execute(f"PRAGMA user_version = {VERSION}")
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def _prune(self, db: sqlite3.Connection) -> float:
        """Returns which part of the file is free then."""
        if self._clock_is_sound():
            db.execute("DELETE FROM blocks WHERE last < ?", (time.time() - self._age,))
        [(pages,)], [(free,)], [(page,)] = (
            db.execute(f"PRAGMA {one}").fetchall() for one in ("page_count", "freelist_count", "page_size")
        )
        over = (pages - free) * page - self._size * (1 - LOOSE)
        while over > 0 and (oldest := db.execute(_OLDEST).fetchall()):
            for number, length in oldest:
                if over > 0:
                    db.execute("DELETE FROM blocks WHERE number = ?", (number,))
                    over -= length
        [(free,)] = db.execute("PRAGMA freelist_count").fetchall()
        return float(free / pages)

    def _clock_is_sound(self) -> bool:
        wall, before = time.time() - time.monotonic(), self._wall
        self._wall = wall
        if abs(wall - before) > JUMP:
            self._held_until = time.monotonic() + HELD
            log.warning(
                "the clock was set by %+.0f s: for an hour nothing is deleted from the history %s for its age",
                wall - before, self._path,
            )  # fmt: skip
        return time.monotonic() >= self._held_until


def check(db: sqlite3.Connection, path: Path) -> None:
    """Raises Foreign for a database of another program, or of a later version."""
    # The tables first: who begins the file makes them and its id at once, and that may be between two of these lines.
    [(tables,)] = db.execute("SELECT count(*) FROM sqlite_master").fetchall()
    [(application,)], [(version,)] = db.execute("PRAGMA application_id").fetchall(), db.execute("PRAGMA user_version").fetchall()
    if tables and application != APPLICATION:
        raise Foreign(f"{path} is the database of another program: name another file")
    if version > VERSION:
        raise Foreign(f"{path} was written by a later version of this program: update it, or name another file")


_Block: TypeAlias = tuple[float, float, int, str, bytes]


def _blocks(items: Sequence[Item]) -> Iterator[_Block]:
    """What went well apart from the rest, which is looked for more often."""
    entries = [item for item in items if not isinstance(item, Run)]
    for kind in (WELL, BADLY):
        of_kind = [entry for entry in entries if (WELL if entry[4] == "finished" else BADLY) == kind]
        for at in range(0, len(of_kind), BLOCK):
            yield _block(kind, of_kind[at : at + BLOCK])
    together: list[Run] = []
    many = 0
    for run in (item for item in items if isinstance(item, Run)):
        together.append(run)
        many += run.many
        if many >= BLOCK:
            yield _block_of_runs(together)
            together, many = [], 0
    if together:
        yield _block_of_runs(together)


def _block(kind: int, entries: Sequence[Entry]) -> _Block:
    times = [entry[6] for entry in entries]
    return min(times), max(times), kind, json.dumps(sorted({entry[1] for entry in entries})), pack(entries)


def _block_of_runs(runs: Sequence[Run]) -> _Block:
    handlers = json.dumps(sorted({run.handler for run in runs}))
    return min(run.began for run in runs), max(run.until for run in runs), RUNS, handlers, pack_runs(runs)


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Of all processes, in the folder; not in the file, whose locks are SQLite's."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
