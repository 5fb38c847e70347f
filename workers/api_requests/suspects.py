"""The channel spam: keeps what the verdicts need, judges, and tells what is new."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from workers.api_requests import spam
from workers.api_requests.store import Store, write_file
from workers.api_requests.verdict import Suspect

_FILES = 60  # so many small files of evidence before they are merged into one
_REMEMBERED = "14 days"  # of evidence, from the line that came last back, once files are merged

_TIME = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        ("address", pa.string()),
        ("first_seen", _TIME),
        ("last_seen", _TIME),
        ("requests", pa.int64()),
        ("score", pa.int64()),
        ("reasons", pa.list_(pa.string())),
    ]
)


class Bench:
    """Where evidence is collected and judged. ``tell`` takes what is to be published of suspects, by address, durably."""

    def __init__(self, spark: SparkSession, evidence: Store, output: Path, tell: Callable[[Mapping[str, str]], None]) -> None:
        self._spark = spark
        self._evidence = evidence
        self._file = output / "suspects.parquet"
        self._activity = output / "activity.parquet"
        self._tell = tell

    def collect(self, requests: DataFrame, batch: int) -> int:
        """Keep the evidence of one batch of parsed requests; returns how many there were."""
        return self._evidence.write(requests.select(*spam.EVIDENCE, f.col("timestamp").alias("taken")), batch)

    def judge(self) -> int:
        """Judge all the evidence, tell of suspects that are new or did more, then keep the list; returns its length.

        Told before it is kept: after a crash in between they are told of again, which the block list stands.
        """
        evidence = self._evidence.read(self._spark)
        found = spam.suspects(evidence) if evidence is not None else []
        known = {one.address: one for one in self.known()}
        news = [one for one in found if _differs(one, known.get(one.address))]
        listed = {**known, **{one.address: one for one in found}}
        if news:
            self._tell({one.address: _json(one) for one in news})
        write_file(self._file, _table(sorted(listed.values(), key=lambda one: (-one.requests, one.address))))
        if evidence is not None:
            write_file(self._activity, _activity(evidence, list(listed)).toArrow())
        return len(listed)

    def merge(self, batch: int) -> None:
        """Let go of old evidence, and of small files, when there are many. Suspects stay suspects.

        Old is what the queue took long ago: what a line dates itself, a line of any year, evicts nothing.
        """
        if self._evidence.count_files() <= _FILES:
            return
        evidence = self._evidence.read(self._spark)
        if evidence is not None:
            self._evidence.merge(_recent(evidence), batch)

    def known(self) -> list[Suspect]:
        return read(self._file)


def read(file: Path) -> list[Suspect]:
    """The suspects in a ``suspects.parquet``; none while there is no file."""
    return [Suspect(**row) for row in pq.read_table(file).to_pylist()] if file.exists() else []


def _recent(evidence: DataFrame) -> DataFrame:
    taken = f.coalesce("taken", "time") if "taken" in evidence.columns else f.col("time")  # earlier versions kept no `taken`
    newest = f.least(f.max(taken), f.current_timestamp())  # one clock that is years ahead must not evict all
    oldest = evidence.agg((newest - f.expr(f"INTERVAL {_REMEMBERED}")).alias("oldest"))
    return evidence.crossJoin(f.broadcast(oldest)).where(taken >= f.col("oldest")).drop("oldest")


def _differs(new: Suspect, old: Suspect | None) -> bool:
    return old is None or (new.requests, new.reasons) != (old.requests, old.reasons)


def _json(one: Suspect) -> str:
    return json.dumps(
        {
            "address": one.address,
            "first_seen": _iso(one.first_seen),
            "last_seen": _iso(one.last_seen),
            "requests": one.requests,
            "reasons": one.reasons,
        }
    )


def _iso(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def _table(suspects: Sequence[Suspect]) -> pa.Table:
    rows = [{name: getattr(one, name) for name in _SCHEMA.names} for one in suspects]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _activity(evidence: DataFrame, addresses: Sequence[str]) -> DataFrame:
    """hour, address, requests, errors of the suspects: when they came."""
    theirs = evidence.where(f.col("address").isin(list(addresses)))
    return theirs.groupBy(f.date_trunc("hour", "time").alias("hour"), "address").agg(
        f.count(f.lit(1)).alias("requests"), f.count_if(f.col("status") >= 400).alias("errors")
    )  # fmt: skip
