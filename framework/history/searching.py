"""Reads a history, also while workers write it."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args

from framework.errors import WrongUse
from framework.history.rows import Row, rows_of, unpack, unpack_runs
from framework.history.store import BADLY, PATIENCE, RUNS, WELL, Foreign, check
from framework.hooks import Ending

OUTCOMES: tuple[str, ...] = get_args(Ending)


def search(
    path: str | Path, *, id: str = "", handler: str = "", outcome: str = "", exception: str = "",
    since: float | None = None, before: float | None = None, limit: int = 100,
) -> list[dict[str, Any]]:  # fmt: skip
    """The deliveries in the history at ``path`` that fit all that is given, those that started last first, as plain values.

    ``id``: the broker's. ``handler``: ``orders/billing``, or with stars, ``orders/*``. ``outcome``: finished, requeued, dead,
    lease_lost or lost. ``exception``: part of the class or of what it says, in any case. ``since`` and ``before``: when it
    started, seconds since 1970. ``limit``: no more than so many. Each has the keys id, handler, node, attempt, outcome,
    exception, words, started (seconds since 1970) and seconds. Raises WrongUse for a file that is no history, and for an
    outcome that there is not.
    """
    if outcome and outcome not in OUTCOMES:
        raise WrongUse(f"outcome {outcome!r}: it is one of {', '.join(OUTCOMES)}")

    def fits(row: Row) -> bool:
        return (
            (not id or row.id == id)
            and (not handler or fnmatchcase(row.handler, handler))
            and (not outcome or row.outcome == outcome)
            and (not exception or exception.lower() in f"{row.exception}: {row.words}".lower())
            and (since is None or row.started >= since)
            and (before is None or row.started < before)
        )

    found: list[Row] = []
    try:
        with closing(_open(Path(path))) as db:
            if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:  # a worker has just begun it
                return []
            for block in _blocks(db, _kinds(outcome), since, before):
                if len(found) >= limit:  # not before: to sort all that was found at each block took minutes for a million
                    found = _latest(found, limit)
                    if not found or block[0] <= found[-1].started:
                        break
                if not handler or any(fnmatchcase(one, handler) for one in json.loads(block[1])):
                    rows = _of_runs(block[2], id) if block[3] == RUNS else unpack(block[2])
                    found += filter(fits, rows)
    except (sqlite3.Error, ValueError, OSError, Foreign) as error:
        raise WrongUse(f"the history {path} cannot be read: {error}") from error
    return [row._asdict() for row in _latest(found, limit)]


def _latest(rows: Sequence[Row], limit: int) -> list[Row]:
    return sorted(rows, key=lambda row: row.started, reverse=True)[:limit]


def _kinds(outcome: str) -> tuple[int, ...]:
    """Whether blocks of what was finished are looked into, and others."""
    if outcome:
        return (WELL, RUNS) if outcome == "finished" else (BADLY,)
    return (BADLY, WELL, RUNS)


def _of_runs(data: bytes, id: str) -> Iterator[Row]:
    """Those of a run only if ``id``, where it is given, may be among them: to look at each takes a hundred times as long."""
    wanted = id.encode() if id.isascii() else b""
    for run in unpack_runs(data):
        if wanted in run.ids:
            yield from rows_of(run)


def _blocks(
    db: sqlite3.Connection, kinds: tuple[int, ...], since: float | None, before: float | None
) -> Iterator[tuple[float, str, bytes, int]]:
    """When the last of it started, the handlers, the rows, and the kind; the latest first."""
    marks = ", ".join("?" * len(kinds))
    query = (
        f"SELECT last, handlers, rows, well FROM blocks WHERE well IN ({marks}) AND last >= ? AND first < ? ORDER BY last DESC"  # noqa: S608
    )
    limits = (-math.inf if since is None else since, math.inf if before is None else before)
    yield from db.execute(query, (*kinds, *limits))


def _open(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise WrongUse(f"there is no history at {path}: name the file that `workers run --history` writes")
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=PATIENCE)
    try:
        check(db, path)
    except BaseException:
        db.close()
        raise
    return db
