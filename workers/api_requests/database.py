"""Small SQLite files whose commits survive a power cut."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

_PATIENCE = 30.0
"""Seconds for which another transaction on the same file is waited for."""
_CACHE = 16_384
"""KiB of pages: with SQLite's own 2 MB a transaction writes pages that it needs again, 8 % of its CPU."""


@contextmanager
def transaction(path: Path, *schema: str) -> Iterator[sqlite3.Connection]:
    """One transaction on the file ``path``, which is made where it is missing; durable at the end. Others may have it open."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=_PATIENCE)) as database:
        _keep_wal(database)
        database.execute("pragma synchronous = full")
        database.execute(f"pragma cache_size = -{_CACHE}")
        with database:
            for statement in schema:
                database.execute(statement)
            yield database


def _keep_wal(database: sqlite3.Connection) -> None:
    """Of two that make the file at the same time one is told at once that it is locked: SQLite's own patience is not for this."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            database.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.005)
        else:
            return
