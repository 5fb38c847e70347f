"""The bench of suspects: what is told and kept, and which evidence goes, whatever the lines date themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]
NOON = datetime(2024, 5, 12, 12, tzinfo=UTC)
COLUMNS = "address string, time timestamp, method string, path string, query string, status int, timestamp timestamp"


def request(address: str, time: datetime, taken: datetime, path: str = "/") -> tuple[Any, ...]:
    return address, time, "GET", path, "", 404 if "env" in path else 200, taken


class Told(list[Mapping[str, str]]):
    def __call__(self, news: Mapping[str, str]) -> None:
        self.append(dict(news))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def bench(tmp_path: Path, spark: Any, told: Told, monkeypatch: pytest.MonkeyPatch) -> Any:
    from workers.api_requests.job.session import Session
    from workers.api_requests.job.spam import evidence
    from workers.api_requests.job.store import Store

    monkeypatch.setattr(evidence, "_FILES", 0)
    return evidence.Evidence(Session(spark), Store(tmp_path / "evidence", tmp_path / "scratch"), tmp_path / "spam", told)


def addresses(tmp_path: Path, spark: Any) -> list[str]:
    return sorted(row.address for row in spark.read.parquet(str(tmp_path / "evidence")).select("address").collect())


def test_evidence_goes_by_when_the_queue_took_it_whatever_it_dates_itself(tmp_path: Path, spark: Any, bench: Any) -> None:
    day = timedelta(days=1)
    rows = [
        request("of 1995", datetime(1995, 7, 1, tzinfo=UTC), NOON),
        request("of 2999", datetime(2999, 1, 1, tzinfo=UTC), NOON),
        request("of today", NOON, NOON),
        request("of 13 days ago", NOON - 13 * day, NOON - 13 * day),
        request("of 15 days ago", NOON - 15 * day, NOON - 15 * day),
    ]
    assert bench.collect(spark.createDataFrame(rows, COLUMNS), 0) == 5
    bench.merge(0)
    assert addresses(tmp_path, spark) == ["of 13 days ago", "of 1995", "of 2999", "of today"]


def test_a_queue_whose_clock_is_years_ahead_evicts_nothing(tmp_path: Path, spark: Any, bench: Any) -> None:
    now = datetime.now(UTC)
    rows = [request("a", NOON, now), request("b", NOON, datetime(2999, 1, 1, tzinfo=UTC))]
    bench.collect(spark.createDataFrame(rows, COLUMNS), 0)
    bench.merge(0)
    assert addresses(tmp_path, spark) == ["a", "b"]


def test_evidence_that_an_earlier_version_kept_is_judged_and_merged(tmp_path: Path, spark: Any, bench: Any) -> None:
    from workers.api_requests.job.spam import visits

    old = spark.createDataFrame([request("old", NOON, NOON)], COLUMNS).select(*visits.EVIDENCE)
    bench._kept.write(old, 0)
    bench.merge(0)
    assert addresses(tmp_path, spark) == ["old"]
    bench._kept.write(old, 1)
    bench.collect(spark.createDataFrame([request("new", datetime(1995, 7, 1, tzinfo=UTC), NOON)], COLUMNS), 2)
    assert bench.judge() == 0
    bench.merge(2)
    assert addresses(tmp_path, spark) == ["new", "old", "old"], "also where Spark would look at the columns of the oldest file"


def test_suspects_are_told_before_they_are_listed_and_again_only_when_they_did_more(
    tmp_path: Path, spark: Any, bench: Any, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workers.api_requests.job.spam import evidence

    def abuse(batch: int) -> None:
        rows = [request("66.0.0.1", NOON, NOON, f"/{batch}/{n}/.env") for n in range(9)]
        bench.collect(spark.createDataFrame(rows, COLUMNS), batch)

    abuse(0)
    with monkeypatch.context() as crash:
        crash.setattr(evidence, "write_file", lambda *_: (_ for _ in ()).throw(OSError("killed here")))
        with pytest.raises(OSError, match="killed here"):
            bench.judge()
    assert [list(news) for news in told] == [["66.0.0.1"]]
    assert bench.known() == []
    assert bench.judge() == 1
    assert told[1] == told[0]
    assert bench.judge() == 1
    assert len(told) == 2, "no news"
    abuse(1)
    bench.judge()
    assert json.loads(told[2]["66.0.0.1"]) == {
        "address": "66.0.0.1", "first_seen": "2024-05-12T12:00:00Z", "last_seen": "2024-05-12T12:00:00Z", "requests": 18,
        "reasons": bench.known()[0].reasons,
    }  # fmt: skip
