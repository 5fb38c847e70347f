"""The channel growth: requests, distinct and new addresses by hour and by day, exact whatever order the lines came in.

An address is new in an hour when it was not seen in the year before: a line of long ago changes its own periods alone. The
watermark (the latest event time, none later than the queue took it, less LATENESS) says which hours and days are complete;
a line that comes later still is counted, because a growth curve that drops lines is wrong for ever, and counted as late too.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from workers.api_requests.database import transaction
from workers.api_requests.detect.growth import history, state
from workers.api_requests.detect.growth.state import HOUR, LATENESS, Dated, Row
from workers.api_requests.detect.kept import Kept
from workers.api_requests.detect.tables import Files, write_table

_log = logging.getLogger(__name__)
_TIME = pa.timestamp("us", tz="UTC")
_FIGURES = [
    pa.field("requests", pa.int64()), pa.field("addresses", pa.int64(), nullable=False),
    pa.field("new_addresses", pa.int64(), nullable=False), pa.field("complete", pa.bool_()),
]  # fmt: skip
_BY_HOUR = pa.schema([pa.field("hour", _TIME), *_FIGURES])
_BY_DAY = pa.schema([pa.field("date", pa.date32()), *_FIGURES, pa.field("change", pa.float64())])
_APPLIED, _ZONE = "applied", "zone"


class _Unusable(Exception):
    """The state cannot go on with what is kept, and is made of that anew."""


class Growth:
    """Where requests are counted. ``kept`` holds what every batch counted, the SQLite file ``counts`` what that comes to."""

    def __init__(self, kept: Kept, counts: Path, output: Files) -> None:
        self._kept = kept
        self._counts = counts
        self._output = output
        self.late = self._late()
        """How many lines came when their hour was complete, since the state was made. They are counted as all others are."""

    def _late(self) -> int:
        if not self._counts.exists():
            return 0
        try:
            with transaction(self._counts, *state.SCHEMA) as database:
                return int(state.marked(database, "late", 0))
        except sqlite3.DatabaseError:  # which the first batch sees to
            return 0

    def count(self, requests: DataFrame, batch: int) -> None:
        """Add one batch of parsed ``requests``, and write ``by_hour.parquet`` and ``by_day.parquet`` anew.

        What the batch counted is kept first, then added to the state in one transaction with the batch's number, then the figures
        are written. After a crash in between the batch runs again, and what it did before it does not do again.
        """
        hourly = requests.groupBy(f.date_trunc("hour", "time").alias("hour"), "address").agg(
            f.count(f.lit(1)).alias("requests"), f.max(f.least("time", "timestamp")).alias("latest")
        )  # fmt: skip
        self._kept.write(hourly, batch)
        self.renew(requests.sparkSession)

    def renew(self, spark: SparkSession) -> None:
        """Add what is kept and not in the state yet, and write what the state comes to."""
        try:
            hours, days, applied = self._add(spark)
        except _Unusable as error:
            _log.warning("%s is made anew of %s: %s", self._counts, self._kept.folder, error)
            for end in ("", "-wal", "-shm"):
                self._counts.with_name(f"{self._counts.name}{end}").unlink(missing_ok=True)
            hours, days, applied = self._add(spark)
        write_table(self._output, "growth/by_hour.parquet", hours)
        write_table(self._output, "growth/by_day.parquet", days)
        history.join(self._kept.folder, applied)

    def _add(self, spark: SparkSession) -> tuple[pa.Table, pa.Table, int]:
        """Add what the state does not hold; returns both tables, and the last batch that it holds then. Raises _Unusable."""
        with _unusable_where_damaged(), transaction(self._counts, *state.SCHEMA) as database:
            state.begin(database)
            _check_zone(database, str(spark.conf.get("spark.sql.session.timeZone")))
            applied = int(state.marked(database, _APPLIED, -1))
            for piece in history.after(self._kept.folder, applied):
                state.add(database, _rows(piece.path), lambda hours: _dated(spark, hours))
                applied = piece.last
            state.mark(database, _APPLIED, applied)
            watermark, late = int(state.marked(database, "latest", 0)) - LATENESS, int(state.marked(database, "late", 0))
            tables = _by_hour(state.by_hour(database), watermark), _by_day(state.by_day(database), watermark)
        self.late = late
        return *tables, applied


@contextmanager
def _unusable_where_damaged() -> Iterator[None]:
    try:
        yield
    except history.Torn as error:
        raise _Unusable(str(error)) from None
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        raise _Unusable(str(error)) from None


def _check_zone(database: sqlite3.Connection, zone: str) -> None:
    """An hour belongs to another day in another time zone."""
    before = state.marked(database, _ZONE, zone)
    if before != zone:
        raise _Unusable(f"its days are those of {before}, and spark.sql.session.timeZone is {zone} now")
    state.mark(database, _ZONE, zone)


def _rows(path: Path) -> Iterator[Row]:
    for table in history.rows(path):
        columns = (table[name] for name in ("address", "hour", "requests", "latest"))
        yield from zip(*((one.cast(pa.int64()) if one.type == _TIME else one).to_pylist() for one in columns), strict=True)


def _dated(spark: SparkSession, hours: list[int]) -> Iterator[Dated]:
    """By Spark, which knows the time zone."""
    date = f.to_date(f.timestamp_micros("hour"))
    ends = f.unix_micros(date.cast("timestamp") + f.expr("INTERVAL 1 DAY"))
    # No createDataFrame: it makes the session of the batch the active one for all of Python, a notebook's own code too.
    table = spark.range(0, 1, 1, 1).select(f.explode(f.from_json(f.lit(json.dumps(hours)), "array<bigint>")).alias("hour"))
    for row in table.select("hour", f.unix_date(date).alias("date"), ends.alias("ends")).collect():
        yield row.hour, row.date, row.ends


def _by_hour(rows: Sequence[tuple[int, ...]], watermark: int) -> pa.Table:
    """hour, requests, addresses, new_addresses, complete."""
    return _table(((*row, row[0] + HOUR <= watermark) for row in rows), _BY_HOUR)


def _by_day(rows: Sequence[tuple[int, ...]], watermark: int) -> pa.Table:
    """date, requests, addresses, new_addresses, complete, and the change from the day before as a share (0.5: half more)."""
    requests = {date: count for date, count, *_ in rows}

    def change(date: int, count: int) -> float | None:
        return count / requests[date - 1] - 1 if date - 1 in requests else None

    return _table(((*row, ends <= watermark, change(*row[:2])) for *row, ends in rows), _BY_DAY)


def _table(rows: Iterator[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
