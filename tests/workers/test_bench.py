"""The bench of suspects: what is told and kept, and which evidence goes, whatever the lines date themselves."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
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
    dies = False

    def __call__(self, news: Mapping[str, str]) -> None:
        self.append(dict(news))
        if self.dies:
            raise OSError("killed here")


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def bench(tmp_path: Path, spark: Any, told: Told) -> Any:
    from workers.api_requests.detect.kept import Kept
    from workers.api_requests.detect.spam import evidence
    from workers.api_requests.stream.output import LocalOutput
    from workers.api_requests.stream.session import Session

    return evidence.Evidence(
        Session(spark).fitted, Kept(tmp_path / "evidence"), tmp_path / "spam.sqlite", LocalOutput(tmp_path), told
    )


def addresses(tmp_path: Path) -> list[tuple[str, int]]:
    """Whose requests are remembered, and how many."""
    with closing(sqlite3.connect(tmp_path / "spam.sqlite")) as database:
        return database.execute("select address, sum(requests) from slots group by address order by address").fetchall()


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
    bench.judge()
    assert addresses(tmp_path) == [("of 13 days ago", 1), ("of 1995", 1), ("of 2999", 1), ("of today", 1)]


def test_a_queue_whose_clock_is_years_ahead_evicts_nothing(tmp_path: Path, spark: Any, bench: Any) -> None:
    now = datetime.now(UTC)
    rows = [request("a", NOON, now), request("b", NOON, datetime(2999, 1, 1, tzinfo=UTC))]
    bench.collect(spark.createDataFrame(rows, COLUMNS), 0)
    bench.judge()
    assert addresses(tmp_path) == [("a", 1), ("b", 1)]


def test_evidence_that_an_earlier_version_kept_is_judged_with_the_rest(tmp_path: Path, spark: Any, bench: Any) -> None:
    from workers.api_requests.detect.kept import write_file
    from workers.api_requests.detect.spam.acts import EVIDENCE

    old = spark.createDataFrame([request("old", NOON, NOON)], COLUMNS).select(*EVIDENCE)
    write_file(bench._kept.folder / "upto-000000000.parquet", old.union(old).toArrow())
    bench._kept.write(old, 1)
    bench.collect(spark.createDataFrame([request("new", datetime(1995, 7, 1, tzinfo=UTC), NOON)], COLUMNS), 2)
    assert bench.judge() == 0
    assert addresses(tmp_path) == [("new", 1), ("old", 3)]
    assert list((tmp_path / "evidence").iterdir()) == []


def test_a_long_batch_is_added_some_at_a_time(tmp_path: Path, spark: Any, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from workers.api_requests.detect.spam import evidence

    sizes, add = list[int](), evidence.state.add
    monkeypatch.setattr(evidence, "_AT_ONCE", 4)
    monkeypatch.setattr(evidence.state, "add", lambda database, acts: (sizes.append(acts.num_rows), add(database, acts)))
    rows = [request("66.0.0.1", NOON, NOON, f"/{n}/.env") for n in range(9)]
    bench.collect(spark.createDataFrame([*rows, request("66.0.0.2", NOON, NOON)], COLUMNS).coalesce(1), 0)
    assert bench.judge() == 1
    assert sizes == [4, 4, 2]
    assert addresses(tmp_path) == [("66.0.0.1", 9), ("66.0.0.2", 1)]
    assert [one.requests for one in bench.known()] == [9]


def test_a_batch_that_was_judged_and_runs_again_is_not_counted_again(tmp_path: Path, spark: Any, bench: Any) -> None:
    rows = spark.createDataFrame([request("a", NOON, NOON)], COLUMNS)
    for _ in range(2):
        assert bench.collect(rows, 7) == 1
        bench.judge()
    assert addresses(tmp_path) == [("a", 1)]


def test_suspects_are_told_before_they_are_listed_and_again_only_when_they_did_more(
    tmp_path: Path, spark: Any, bench: Any, told: Told
) -> None:
    def abuse(batch: int) -> None:
        rows = [request("66.0.0.1", NOON, NOON, f"/{batch}/{n}/.env") for n in range(9)]
        bench.collect(spark.createDataFrame(rows, COLUMNS), batch)

    abuse(0)
    told.dies = True
    with pytest.raises(OSError, match="killed here"):
        bench.judge()
    told.dies = False
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


def test_the_list_is_written_apart_from_the_batches_and_also_where_a_run_was_killed_before_it_was(
    tmp_path: Path, spark: Any, bench: Any, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workers.api_requests.detect.spam import evidence, suspects

    def abuse(batch: int, who: str) -> None:
        rows = [request(who, NOON, NOON, f"/{batch}/{n}/.env") for n in range(9)]
        bench.collect(spark.createDataFrame(rows, COLUMNS), batch)
        bench.settle()

    def written() -> list[str]:
        return sorted(one.address for one in suspects.read(tmp_path / "spam" / "suspects.parquet"))

    abuse(0, "66.0.0.1")
    assert (written(), [sorted(news) for news in told]) == ([], [["66.0.0.1"]])
    with monkeypatch.context() as full:
        full.setattr(evidence, "write_table", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            bench.tend()
    monkeypatch.setattr(evidence, "_SHARE", 10_000)
    bench.tend()
    assert written() == ["66.0.0.1"]
    abuse(1, "66.0.1.1")
    bench.tend()
    assert written() == ["66.0.0.1"], "it was written just now"
    killed = evidence.Evidence(bench._fitted, bench._kept, bench._counts, bench._output, told)
    killed.tend()
    assert written() == ["66.0.0.1", "66.0.1.1"]
    assert len(told) == 2


def test_the_list_of_an_earlier_version_is_taken_over(tmp_path: Path, spark: Any, bench: Any, told: Told) -> None:
    from workers.api_requests.database import transaction
    from workers.api_requests.detect.spam import state, suspects
    from workers.api_requests.detect.spam.allowed import Allowed
    from workers.api_requests.detect.spam.listed import Rules
    from workers.api_requests.detect.spam.verdict import Suspect
    from workers.api_requests.detect.tables import write_table

    bench.rules = Rules(30, Allowed(()))
    today = int(NOON.timestamp()) // 86400
    write_table(
        bench._output, "spam/suspects.parquet", suspects.table([Suspect(f"66.0.{n}.1", NOON, NOON, 5, 4, ["x"]) for n in (0, 1)])
    )
    with transaction(tmp_path / "spam.sqlite", *state.SCHEMA) as database:
        database.execute("create table suspected (address text primary key, day integer) without rowid")
        database.executemany("insert into suspected values (?, ?)", [("66.0.0.1", today - 29), ("66.0.1.1", today - 31)])
        database.execute("create table tells (target text, address text, primary key (target, address)) without rowid")
    bench.collect(spark.createDataFrame([request("a", NOON, NOON)], COLUMNS), 0)
    assert bench.judge() == 1
    assert [(one.address, one.requests, one.reasons) for one in bench.known()] == [("66.0.0.1", 5, ["x"])]
    assert told == []


def test_who_is_allowed_or_has_not_come_for_long_is_no_suspect(tmp_path: Path, spark: Any, bench: Any, told: Told) -> None:
    from workers.api_requests.detect.spam.allowed import Allowed
    from workers.api_requests.detect.spam.listed import Rules

    def come(batch: int, when: datetime, *names: str) -> list[str]:
        rows = [request(name, when, when, f"/{n}/.env") for name in names for n in range(9)]
        bench.collect(spark.createDataFrame(rows, COLUMNS), batch)
        bench.judge()
        return sorted(one.address for one in bench.known())

    assert come(0, NOON, "66.0.0.1", "66.0.1.1") == ["66.0.0.1", "66.0.1.1"]
    bench.rules = Rules(30, Allowed(()))
    assert come(1, NOON + timedelta(days=30), "66.0.2.1") == ["66.0.0.1", "66.0.1.1", "66.0.2.1"], "kept without evidence"
    bench.rules = Rules(30, Allowed(["66.0.2.0/24"]))
    assert come(2, NOON + timedelta(days=31), "66.0.1.1", "66.0.2.1", "66.0.3.1") == ["66.0.1.1", "66.0.3.1"]
    assert [sorted(news) for news in told] == [["66.0.0.1", "66.0.1.1"], ["66.0.2.1"], ["66.0.3.1"]]
    assert json.loads(told[0]["66.0.1.1"])["requests"] == 9
    bench.rules = Rules(30, Allowed(()))
    assert come(3, NOON + timedelta(days=31), "66.0.0.1") == ["66.0.0.1", "66.0.1.1", "66.0.2.1", "66.0.3.1"]
