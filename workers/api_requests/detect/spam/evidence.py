"""The channel spam: keeps what the verdicts need, judges, and tells what is new."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from workers.api_requests.database import transaction
from workers.api_requests.detect.kept import Kept
from workers.api_requests.detect.spam import listed, looks, state, suspects, visits
from workers.api_requests.detect.spam.acts import EVIDENCE, acts
from workers.api_requests.detect.spam.allowed import Allowed
from workers.api_requests.detect.spam.groups import DAY
from workers.api_requests.detect.spam.listed import Rules
from workers.api_requests.detect.spam.verdict import Suspect
from workers.api_requests.detect.tables import Files, write_table

_REMEMBERED = 14  # days of evidence, from the line that came last back
_SUSPECTS, _ACTIVITY_OF = "spam/suspects.parquet", "spam/activity.parquet"
_APPLIED = "applied"
"""The number of the last batch that the state holds."""
_AT_ONCE = 150_000
"""Acts that are added at once: about those of a batch of the job."""
_SHARE = 10
"""Of the time, the part that writing the list may take: it is written whole, however long it is."""


class Evidence:
    """Where evidence is collected and judged. ``tell`` takes what is to be published of suspects, by address, durably.
    ``fitted`` gives the session, with as many partitions in a shuffle as tasks can run at once now.

    ``kept`` holds batches until they are judged; what they come to is in the SQLite file ``counts``. ``forget``: days without a
    line after which a suspect is none any more; None for never. ``allowed`` are no suspects, whatever they do.
    """

    def __init__(
        self, fitted: Callable[[], SparkSession], kept: Kept, counts: Path, output: Files,
        tell: Callable[[Mapping[str, str]], None], *, forget: int | None = None, allowed: Allowed | None = None,
    ) -> None:  # fmt: skip
        self._fitted = fitted
        self._kept = kept
        self._counts = counts
        self._output = output
        self._tell = tell
        self.rules = Rules(forget, allowed or Allowed(()))
        self._listed_by: Rules | None = None
        self._is_stale = counts.exists()  # a run that was killed may not have written the list
        self._write_at = 0.0

    def collect(self, requests: DataFrame, batch: int) -> int:
        """Keep the evidence of one batch of parsed requests; returns how many there were."""
        return self._kept.write(acts(requests.select(*EVIDENCE, f.col("timestamp").alias("taken"))), batch)

    def judge(self) -> int:
        """Judge what has come, tell of suspects that are new or did more, and write the list; returns its length."""
        self.settle()
        return self.write_list()

    def settle(self) -> None:
        """Judge what has come, and tell of suspects that are new or did more. What that costs does not grow with the history.

        All in one transaction of the state, whose batches go only when it is durable: after a crash anywhere before they are
        judged again, and told of again, which the block list stands.
        """
        with transaction(self._counts, *state.SCHEMA) as database:
            state.begin(database)
            last = self._apply(database)
            today = _today(database)
            listed.begin(database, self._written, today)
            lost = state.evict(database, today - _REMEMBERED)
            visits.renew(database)
            looks.renew(database, everybody=lost)
            news = listed.renew(database, today, self.rules, whole=self._listed_by != self.rules)
            if news:
                self._tell({address: suspects.message(one) for address, one in news.items()})
        self._kept.drop(last)
        self._listed_by = self.rules
        self._is_stale = True

    def tend(self) -> None:
        """Write the list where it is another than is written. Not more often than leaves it a tenth of the time."""
        if self._is_stale and time.monotonic() >= self._write_at:
            began = time.monotonic()
            self.write_list()
            self._write_at = time.monotonic() + _SHARE * (time.monotonic() - began)

    def write_list(self) -> int:
        """Write the list as it is now; returns its length."""
        self._is_stale = False
        try:
            with transaction(self._counts, *state.SCHEMA) as database:
                database.execute("begin")  # so that both tables are of one moment
                found, hours = listed.suspects(database), listed.activity(database)
            write_table(self._output, _SUSPECTS, suspects.table(found))
            write_table(self._output, _ACTIVITY_OF, hours)
        except BaseException:
            self._is_stale = True
            raise
        return len(found)

    def finish(self) -> None:
        """Write the list where it is another than is written."""
        if self._is_stale:
            self.write_list()

    def _apply(self, database: sqlite3.Connection) -> int:
        """Add the batches that the state does not hold; returns the number of the last that it holds then."""
        applied = state.marked(database, _APPLIED, -1)
        for number, path in self._kept.after(applied):
            for some in self._as_acts(path):
                state.add(database, some)
            applied = number
        state.mark(database, _APPLIED, applied)
        return applied

    def _as_acts(self, path: Path) -> Iterator[pa.Table]:
        """A batch, some at a time: memory does not grow with it. One that an earlier version kept holds plain requests."""
        with pq.ParquetFile(path) as file:
            if "target" in file.schema_arrow.names:
                yield from (pa.Table.from_batches([some]) for some in file.iter_batches(_AT_ONCE))
                return
        yield acts(self._fitted().read.parquet(path.absolute().as_uri())).toArrow()

    def known(self) -> list[Suspect]:
        """The list, as far as what has come is judged."""
        with transaction(self._counts, *state.SCHEMA) as database:
            return listed.suspects(database)

    def _written(self) -> list[Suspect]:
        content = self._output.read(_SUSPECTS)
        return [] if content is None else suspects.read(pa.BufferReader(content))


def _today(database: sqlite3.Connection) -> int:
    """The day of the line that the queue took last: what a line dates itself, a line of any year, evicts nothing. No day that is
    still to come: one clock that is years ahead must not evict all."""
    now = int(time.time() * 1e6)
    return min(state.marked(database, "newest", now), now) // DAY


def suspects_of(requests: DataFrame) -> list[Suspect]:
    """The suspects among ``requests`` (columns EVIDENCE) alone, the busiest first."""
    database = sqlite3.connect(":memory:")
    state.begin(database)
    state.add(database, acts(requests).toArrow())
    visits.renew(database)
    looks.renew(database)
    return looks.suspects(database)
