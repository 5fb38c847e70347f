"""The channel spam: keeps what the verdicts need, judges, and tells what is new."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from workers.api_requests.database import transaction
from workers.api_requests.job.kept import Kept
from workers.api_requests.job.output import Output, write_table
from workers.api_requests.job.session import Session
from workers.api_requests.job.spam import looks, state, suspects, visits
from workers.api_requests.job.spam.acts import EVIDENCE, SCHEMA, acts
from workers.api_requests.job.spam.allowed import Allowed
from workers.api_requests.job.spam.verdict import Suspect

_REMEMBERED = 14  # days of evidence, from the line that came last back
_SUSPECTS, _ACTIVITY_OF = "spam/suspects.parquet", "spam/activity.parquet"
_APPLIED = "applied"
"""The number of the last batch that the state holds."""
_HOURS = "select hour, address, sum(requests), sum(errors) from slots where address = ? group by hour"
_TIME = pa.timestamp("us", tz="UTC")
_ACTIVITY = pa.schema([("hour", _TIME), ("address", pa.string()), ("requests", pa.int64()), ("errors", pa.int64())])


class Evidence:
    """Where evidence is collected and judged. ``tell`` takes what is to be published of suspects, by address, durably.

    ``kept`` holds batches until they are judged; what they come to is in the SQLite file ``counts``. ``forget``: days without a
    line after which a suspect is none any more; None for never. ``allowed`` are no suspects, whatever they do.
    """

    def __init__(
        self, session: Session, kept: Kept, counts: Path, output: Output, tell: Callable[[Mapping[str, str]], None],
        *, forget: int | None = None, allowed: Allowed | None = None,
    ) -> None:  # fmt: skip
        self._session = session
        self._kept = kept
        self._counts = counts
        self._output = output
        self._tell = tell
        self._forget = forget
        self._allowed = allowed or Allowed(())

    def collect(self, requests: DataFrame, batch: int) -> int:
        """Keep the evidence of one batch of parsed requests; returns how many there were."""
        return self._kept.write(acts(requests.select(*EVIDENCE, f.col("timestamp").alias("taken"))), batch)

    def judge(self) -> int:
        """Judge what has come, tell of suspects that are new or did more, then keep the list; returns its length.

        All in one transaction of the state, whose batches go only when it is durable: after a crash anywhere before they are
        judged again, and told of again, which the block list stands.
        """
        with transaction(self._counts, *state.SCHEMA) as database:
            state.begin(database)
            last = self._apply(database)
            today = _today(database)
            state.evict(database, today - _REMEMBERED)
            visits.renew(database)
            listed = self._list(database, today)
        self._kept.drop(last)
        return listed

    def _apply(self, database: sqlite3.Connection) -> int:
        """Add the batches that the state does not hold; returns the number of the last that it holds then."""
        applied = state.marked(database, _APPLIED, -1)
        for number, path in self._kept.after(applied):
            state.add(database, _rows(self._as_acts(path)))
            applied = number
        state.mark(database, _APPLIED, applied)
        return applied

    def _as_acts(self, path: Path) -> Iterator[pa.RecordBatch]:
        """A batch; one that an earlier version kept holds plain requests."""
        with pq.ParquetFile(path) as file:
            if "target" in file.schema_arrow.names:
                yield from file.iter_batches()
                return
        self._session.fit(self._session.spark)
        yield from acts(self._session.spark.read.parquet(path.absolute().as_uri())).toArrow().to_batches()

    def _list(self, database: sqlite3.Connection, today: int) -> int:
        known = {one.address: one for one in self.known()}
        found = {one.address: one for one in looks.suspects(database)}
        days = _last_days(database, {**known, **found}, today)
        stay = {one for one in days if not self._is_forgotten(days[one], today) and one not in self._allowed}
        news = [one for one in found.values() if one.address in stay and _differs(one, known.get(one.address))]
        listed = [one for one in {**known, **found}.values() if one.address in stay]
        if news:
            self._tell({one.address: suspects.message(one) for one in news})
        write_table(self._output, _SUSPECTS, suspects.table(sorted(listed, key=lambda one: (-one.requests, one.address))))
        write_table(self._output, _ACTIVITY_OF, _hours(database, sorted(stay)))
        return len(listed)

    def _is_forgotten(self, day: int, today: int) -> bool:
        return self._forget is not None and day < today - self._forget

    def known(self) -> list[Suspect]:
        content = self._output.read(_SUSPECTS)
        return [] if content is None else suspects.read(pa.BufferReader(content))


def _today(database: sqlite3.Connection) -> int:
    """The day of the line that the queue took last: what a line dates itself, a line of any year, evicts nothing. No day that is
    still to come: one clock that is years ahead must not evict all."""
    now = int(time.time() * 1e6)
    return min(state.marked(database, "newest", now), now) // state.DAY


def _last_days(database: sqlite3.Connection, addresses: Mapping[str, Suspect], today: int) -> dict[str, int]:
    """By address the day on which the queue last took a line of it, also where the evidence of that has gone."""
    before = dict(database.execute("select address, day from suspected"))
    days: dict[str, int] = {}
    for address in addresses:
        day = database.execute("select max(day) from slots where address = ?", (address,)).fetchone()[0]
        days[address] = before.get(address, today) if day is None else day
    database.execute("delete from suspected")
    database.executemany("insert into suspected values (?, ?)", days.items())
    return days


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in SCHEMA.names), strict=True)


def _differs(new: Suspect, old: Suspect | None) -> bool:
    return old is None or (new.requests, new.reasons) != (old.requests, old.reasons)


def _hours(database: sqlite3.Connection, addresses: Sequence[str]) -> pa.Table:
    """hour, address, requests, errors of the suspects: when they came."""
    rows = [row for address in addresses for row in database.execute(_HOURS, (address,))]
    columns = list(zip(*rows, strict=True)) or [()] * 4
    hours = pa.array(columns[0], pa.int64()).cast(_TIME)
    rest = [pa.array(one, kind.type) for one, kind in zip(columns[1:], list(_ACTIVITY)[1:], strict=True)]
    return pa.Table.from_arrays([hours, *rest], schema=_ACTIVITY)


def suspects_of(requests: DataFrame) -> list[Suspect]:
    """The suspects among ``requests`` (columns EVIDENCE) alone, the busiest first."""
    database = sqlite3.connect(":memory:")
    state.begin(database)
    state.add(database, _rows(iter(acts(requests).toArrow().to_batches())))
    visits.renew(database)
    return looks.suspects(database)
