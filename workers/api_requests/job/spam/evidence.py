"""The channel spam: keeps what the verdicts need, judges, and tells what is new."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from workers.api_requests.job.session import Session
from workers.api_requests.job.spam import suspects, visits
from workers.api_requests.job.spam.verdict import Suspect
from workers.api_requests.job.store import Store, write_file

_FILES = 60  # so many small files of evidence before they are merged into one
_REMEMBERED = "14 days"  # of evidence, from the line that came last back, once files are merged


class Evidence:
    """Where evidence is collected and judged. ``tell`` takes what is to be published of suspects, by address, durably."""

    def __init__(self, session: Session, kept: Store, output: Path, tell: Callable[[Mapping[str, str]], None]) -> None:
        self._session = session
        self._kept = kept
        self._file = output / "suspects.parquet"
        self._activity = output / "activity.parquet"
        self._tell = tell

    def collect(self, requests: DataFrame, batch: int) -> int:
        """Keep the evidence of one batch of parsed requests; returns how many there were."""
        return self._kept.write(requests.select(*visits.EVIDENCE, f.col("timestamp").alias("taken")), batch)

    def judge(self) -> int:
        """Judge all the evidence, tell of suspects that are new or did more, then keep the list; returns its length.

        Told before it is kept: after a crash in between they are told of again, which the block list stands.
        """
        self._session.fit(self._session.spark)
        evidence = self._kept.read(self._session.spark)
        found = visits.suspects(evidence) if evidence is not None else []
        known = {one.address: one for one in self.known()}
        news = [one for one in found if _differs(one, known.get(one.address))]
        listed = {**known, **{one.address: one for one in found}}
        if news:
            self._tell({one.address: suspects.message(one) for one in news})
        write_file(self._file, suspects.table(sorted(listed.values(), key=lambda one: (-one.requests, one.address))))
        if evidence is not None:
            write_file(self._activity, _activity(evidence, list(listed)).toArrow())
        return len(listed)

    def merge(self, batch: int) -> None:
        """Let go of old evidence, and of small files, when there are many. Suspects stay suspects.

        Old is what the queue took long ago: what a line dates itself, a line of any year, evicts nothing.
        """
        if self._kept.count_files() <= _FILES:
            return
        evidence = self._kept.read(self._session.spark)
        if evidence is not None:
            self._kept.merge(_recent(evidence), batch)

    def known(self) -> list[Suspect]:
        return suspects.read(self._file)


def _recent(evidence: DataFrame) -> DataFrame:
    taken = f.coalesce("taken", "time") if "taken" in evidence.columns else f.col("time")  # earlier versions kept no `taken`
    newest = f.least(f.max(taken), f.current_timestamp())  # one clock that is years ahead must not evict all
    oldest = evidence.agg((newest - f.expr(f"INTERVAL {_REMEMBERED}")).alias("oldest"))
    return evidence.crossJoin(f.broadcast(oldest)).where(taken >= f.col("oldest")).drop("oldest")


def _differs(new: Suspect, old: Suspect | None) -> bool:
    return old is None or (new.requests, new.reasons) != (old.requests, old.reasons)


def _activity(evidence: DataFrame, addresses: Sequence[str]) -> DataFrame:
    """hour, address, requests, errors of the suspects: when they came."""
    theirs = evidence.where(f.col("address").isin(list(addresses)))
    return theirs.groupBy(f.date_trunc("hour", "time").alias("hour"), "address").agg(
        f.count(f.lit(1)).alias("requests"), f.count_if(f.col("status") >= 400).alias("errors")
    )  # fmt: skip
