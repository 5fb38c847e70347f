"""What the job keeps on disk: files that a repeated batch does not double, counts, growth, the block list."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from framework import FrameworkError
from workers.api_requests.channels.blocklist import BlockList, Entry
from workers.api_requests.job.tally import Tally

NOON = datetime(2024, 5, 12, 12, tzinfo=UTC)

DAYS = {
    "2024-05-12": (938, 81, 81), "2024-05-13": (1361, 142, 126), "2024-05-14": (1407, 346, 297), "2024-05-15": (1145, 88, 69),
    "2024-05-16": (1770, 118, 73), "2024-05-17": (1026, 97, 78), "2024-05-18": (1004, 100, 56), "2024-05-19": (1068, 131, 78),
    "2024-05-20": (760, 86, 59),
}  # fmt: skip
"""Requests, addresses and new addresses of the shipped log."""


class TestTheTally:
    def test_batches_add_up(self, tmp_path: Path) -> None:
        tally = Tally(tmp_path / "t.json")
        tally.add(0, {"parsed": 3, "rejected": 1})
        tally.add(1, {"parsed": 2})
        assert tally.totals() == {"parsed": 5, "rejected": 1}
        assert tally.total() == 6

    def test_a_batch_that_runs_again_is_not_counted_again(self, tmp_path: Path) -> None:
        tally = Tally(tmp_path / "t.json")
        tally.add(0, {"parsed": 3})
        tally.add(1, {"parsed": 2})
        again = Tally(tmp_path / "t.json")
        again.add(1, {"parsed": 2})
        assert again.total() == 5

    def test_what_could_not_be_kept_is_not_counted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tally = Tally(tmp_path / "t.json")
        tally.add(0, {"parsed": 3})
        with monkeypatch.context() as full:
            full.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OSError, match="No space left"):
                tally.add(1, {"parsed": 2})
        assert tally.total() == Tally(tmp_path / "t.json").total() == 3

    def test_one_that_is_damaged_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "t.json").write_text("")
        with pytest.raises(FrameworkError, match=r"t\.json is damaged: without it the job goes on"):
            Tally(tmp_path / "t.json")


class TestTheBlockList:
    def entry(self, address: str = "10.0.0.1", *, hours: int = 0, requests: int = 1) -> Entry:
        return Entry(address, NOON, NOON + timedelta(hours=hours), requests, ("because",))

    def test_keeps_what_it_is_told(self, tmp_path: Path) -> None:
        BlockList(tmp_path / "b.sqlite").put(self.entry())
        assert BlockList(tmp_path / "b.sqlite").entries() == [self.entry()]

    def test_the_same_suspect_again_updates_its_entry(self, tmp_path: Path) -> None:
        listed = BlockList(tmp_path / "b.sqlite")
        for entry in (self.entry(), self.entry(hours=2, requests=9), self.entry("10.0.0.2")):
            listed.put(entry)
        assert listed.entries() == [self.entry(hours=2, requests=9), self.entry("10.0.0.2")]

    def test_old_news_change_nothing(self, tmp_path: Path) -> None:
        listed = BlockList(tmp_path / "b.sqlite")
        listed.put(self.entry(hours=2, requests=9))
        listed.put(self.entry(hours=1, requests=5))
        assert listed.entries() == [self.entry(hours=2, requests=9)]

    def test_no_file_is_an_empty_list(self, tmp_path: Path) -> None:
        assert BlockList(tmp_path / "none.sqlite").entries() == []


class TestTidying:
    def store(self, tmp_path: Path) -> Any:
        from workers.api_requests.job.store import Store, write_file

        (tmp_path / "a").mkdir()
        for day in ("date=2024-05-12", "date=2024-05-13"):
            for batch in range(12):
                write_file(tmp_path / "a" / day / f"batch-{batch:09d}.parquet", pa.table({"n": [batch]}))
        return Store(tmp_path / "a", tmp_path / "scratch", by="date")

    def read(self, tmp_path: Path, day: str) -> list[int]:
        return sorted(ds.dataset(tmp_path / "a" / day).to_table()["n"].to_pylist())

    def test_joins_the_small_files_of_days_that_are_over(self, tmp_path: Path) -> None:
        assert self.store(tmp_path).tidy(11) == 1
        names = [path.name for path in sorted((tmp_path / "a" / "date=2024-05-12").iterdir())]
        assert names == ["batch-000000011.parquet", "upto-000000010.parquet"]  # 11 may yet run again
        assert self.read(tmp_path, "date=2024-05-12") == self.read(tmp_path, "date=2024-05-13") == list(range(12))

    def test_joins_nothing_where_folders_cannot_be_exchanged(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from workers.api_requests.job import store

        monkeypatch.setattr(store, "exchange", lambda *_: False)
        monkeypatch.setattr(store, "_join", lambda *_: pytest.fail("rewritten in vain"))
        some = self.store(tmp_path)
        assert [some.tidy(11), some.tidy(11)] == [0, 0]
        assert len(list((tmp_path / "a" / "date=2024-05-12").iterdir())) == 12
        assert self.read(tmp_path, "date=2024-05-12") == list(range(12))

    def test_does_not_try_again_where_only_the_folders_themselves_cannot_be_exchanged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from workers.api_requests.job import store

        real, joins = store._join, []
        monkeypatch.setattr(store, "_join", lambda files, target: (joins.append(target), real(files, target)))
        monkeypatch.setattr(store, "exchange", lambda one, other: "exchange" in one.name)
        some = self.store(tmp_path)
        assert [some.tidy(11), some.tidy(11)] == [0, 0]
        assert len(joins) == 1
        assert self.read(tmp_path, "date=2024-05-12") == list(range(12))

    def test_leaves_the_day_alone_that_is_not_over_whatever_a_line_dates_itself(self, tmp_path: Path) -> None:
        some = self.store(tmp_path)
        assert some.tidy(11, until="2024-05-12") == 0
        assert some.tidy(11, until="2024-05-13") == 1

    @pytest.mark.parametrize(("limit", "most"), [("_GROUP_ROWS", 4), ("_GROUP_BYTES", 4 * 8)])
    def test_joins_into_row_groups_of_a_good_size(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
    ) -> None:
        from workers.api_requests.job import store

        monkeypatch.setattr(store, limit, most)
        assert self.store(tmp_path).tidy(11) == 1
        joined = pq.ParquetFile(tmp_path / "a" / "date=2024-05-12" / "upto-000000010.parquet")
        assert [joined.metadata.row_group(n).num_rows for n in range(joined.num_row_groups)] == [4, 4, 3]

    def test_joins_files_whose_columns_became_more_and_wider(self, tmp_path: Path) -> None:
        from workers.api_requests.job.store import write_file

        some = self.store(tmp_path)
        day = tmp_path / "a" / "date=2024-05-12"
        write_file(day / "batch-000000012.parquet", pa.table({"n": pa.array([12.5]), "new": ["x"]}))
        write_file(day / "batch-000000013.parquet", pa.table({"n": pa.array([13], pa.int32())}))
        assert some.tidy(14) == 1
        rows = pq.read_table(day / "upto-000000013.parquet", partitioning=None).to_pylist()
        assert [(row["n"], row["new"]) for row in rows[10:]] == [(10.0, None), (11.0, None), (12.5, "x"), (13.0, None)]

    def test_leaves_files_alone_that_do_not_fit_together_and_joins_the_others(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        from workers.api_requests.job.store import write_file

        some = self.store(tmp_path)
        for batch in range(12):
            write_file(tmp_path / "a" / "date=2024-05-11" / f"batch-{batch:09d}.parquet", pa.table({"n": [1]}))
        write_file(tmp_path / "a" / "date=2024-05-11" / "batch-000000009.parquet", pa.table({"n": [[1]]}))
        assert some.tidy(11) == 1
        assert some.tidy(11) == 0
        assert len(list((tmp_path / "a" / "date=2024-05-11").iterdir())) == 12
        assert caplog.text.count("its small files stay as they are") == 1
        assert self.read(tmp_path, "date=2024-05-12") == list(range(12))
        assert not list((tmp_path / "scratch" / "a").glob("date=*"))

    def test_what_goes_wrong_fails_no_batch(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        some = self.store(tmp_path)
        (tmp_path / "scratch").write_text("no folder, and none can be made in it")
        assert some.tidy(11) == 0
        assert "small files stay as they are: [Errno 20] Not a directory" in caplog.text
        assert self.read(tmp_path, "date=2024-05-12") == list(range(12))

    def test_leaves_a_few_files_alone(self, tmp_path: Path) -> None:
        assert self.store(tmp_path).tidy(8) == 0


@pytest.mark.spark
@pytest.mark.slow
class TestTheArchive:
    def test_a_batch_that_runs_again_leaves_every_line_once(self, tmp_path: Path, as_lines: Any) -> None:
        from workers.api_requests.job.archive import archive
        from workers.api_requests.job.store import Store

        lines = [f'10.0.0.{n} - - [{12 + n % 3}/May/2024:06:07:08 +0000] "GET /{n} HTTP/1.1" 200 {n}'.encode() for n in range(30)]
        lines += [b"bad \xff line %d" % n for n in range(7)]
        for batch in (0, 0, 1, 1):
            some = lines[:20] if batch == 0 else lines[20:]
            archived = Store(tmp_path / "archive", tmp_path / "scratch", by="date")
            counts = archive(
                as_lines(some), batch, archived=archived, rejected=Store(tmp_path / "rejected", tmp_path / "scratch")
            )
            assert sum(counts) == len(some)
        raw = [
            row["raw"]
            for folder in ("archive", "rejected")
            for row in ds.dataset(tmp_path / folder).to_table(["raw"]).to_pylist()
        ]
        assert Counter(raw) == Counter(lines)
        assert len(list((tmp_path / "archive" / "date=2024-05-12").glob("*"))) == 2  # one file a day and batch

    def test_files_that_lack_rows_fail_the_batch_and_publish_nothing(
        self, tmp_path: Path, as_lines: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on a cluster whose executors write on disks of their own."""
        from workers.api_requests.job.archive import archive
        from workers.api_requests.job.store import NotShared, Store

        lines = [f'h - - [{12 + n % 3}/May/2024:06:07:08 +0000] "GET /{n} HTTP/1.1" 200 {n}'.encode() for n in range(30)]
        archived = Store(tmp_path / "archive", tmp_path / "scratch", by="date")
        rejected = Store(tmp_path / "rejected", tmp_path / "scratch")
        writes = Store._spark_writes

        def elsewhere(keep: int) -> None:
            def write(self: Store, rows: Any, fresh: Path) -> int:
                counted = writes(self, rows, fresh)
                for part in sorted(fresh.rglob("*.parquet"))[keep:]:
                    part.unlink()
                return counted

            monkeypatch.setattr(Store, "_spark_writes", write)

        for keep, there in ((0, 0), (2, 20)):
            elsewhere(keep)
            with pytest.raises(NotShared, match=rf"batch 0: Spark has written 30 rows .* and {there} are there: .* share"):
                archive(as_lines(lines), 0, archived=archived, rejected=rejected)
            assert not list((tmp_path / "archive").rglob("*.parquet"))
        monkeypatch.undo()
        assert archive(as_lines(lines), 0, archived=archived, rejected=rejected) == (30, 0)
        assert ds.dataset(tmp_path / "archive").count_rows() == 30

    def test_a_batch_of_nothing_is_no_error(self, tmp_path: Path, spark: Any) -> None:
        from workers.api_requests.job.store import Store

        store = Store(tmp_path / "s", tmp_path / "scratch")
        assert [store.write(spark.range(0), batch) for batch in (0, 1)] == [0, 0]
        assert [path.name for path in store.folder.iterdir()] == ["batch-000000000.parquet"], "which has the columns"
        assert list((tmp_path / "scratch" / "s").iterdir()) == []

    def test_it_holds_every_row_whatever_spark_is_told_of_the_size_of_files(self, tmp_path: Path, spark: Any) -> None:
        from workers.api_requests.job.store import Store

        spark.conf.set("spark.sql.files.maxRecordsPerFile", "3")
        try:
            for by in (None, "id"):
                rows = spark.range(30).selectExpr("id % 2 AS id", "id AS n")
                assert Store(tmp_path / f"by-{by}", tmp_path / "scratch", by=by).write(rows, 0) == 30
                assert ds.dataset(tmp_path / f"by-{by}").count_rows() == 30
        finally:
            spark.conf.unset("spark.sql.files.maxRecordsPerFile")


@pytest.mark.spark
@pytest.mark.slow
class TestGrowth:
    def test_is_exact_in_whatever_order_the_lines_come(self, tmp_path: Path, shipped: Any) -> None:
        from pyspark.sql import functions as f

        from workers.api_requests.job.growth.counts import Growth
        from workers.api_requests.job.parse import requests
        from workers.api_requests.job.store import Store

        good = requests(shipped)
        order = list(range(3))
        random.Random(3).shuffle(order)
        for batch, part in enumerate([*order, order[-1]]):  # the last one runs again
            some = good.where(f.pmod(f.xxhash64("raw"), f.lit(3)) == part)
            kept = Store(tmp_path / "hours", tmp_path / "scratch")
            Growth(kept, tmp_path / "growth.sqlite", tmp_path / "growth").count(some, min(batch, 2))
        days = pq.read_table(tmp_path / "growth" / "by_day.parquet").to_pylist()
        assert {str(d["date"]): (d["requests"], d["addresses"], d["new_addresses"]) for d in days} == DAYS
        hours = pq.read_table(tmp_path / "growth" / "by_hour.parquet").to_pylist()
        assert len(hours) == 216
        assert sum(hour["new_addresses"] for hour in hours) == 917
        assert [day["complete"] for day in days] == [True] * 8 + [False]
        assert days[0]["change"] is None
        assert days[1]["change"] == pytest.approx(1361 / 938 - 1)
        assert days[1]["date"] == date(2024, 5, 13)

    def test_a_line_of_long_ago_is_a_period_of_its_own(self, tmp_path: Path, as_lines: Any) -> None:
        """Also one of an address that comes today; and one that is a few hours ahead completes nothing."""
        from workers.api_requests.job.growth.counts import Growth
        from workers.api_requests.job.parse import parse, requests
        from workers.api_requests.job.store import Store

        def line(address: int, when: str) -> bytes:
            return f'10.0.0.{address} - - [{when} +0000] "GET / HTTP/1.1" 200 1'.encode()

        lines = [line(n, f"{12 + n // 4}/May/2024:06:{n:02}:00") for n in range(8)]
        odd = [line(3, "01/Jul/1995:00:00:01"), line(99, "01/Jul/1995:00:00:01"), line(3, "14/May/2024:04:00:00")]
        days: list[dict[str, Any]] = []
        for name, some in (("plain", lines), ("odd", [*lines, *odd])):
            parsed = requests(parse(as_lines(some, taken=datetime(2024, 5, 13, 8, tzinfo=UTC))))
            kept = Store(tmp_path / name, tmp_path / "scratch")
            Growth(kept, tmp_path / f"{name}.sqlite", tmp_path / f"{name}-out").count(parsed, 0)
            rows = pq.read_table(tmp_path / f"{name}-out" / "by_day.parquet").to_pylist()
            days.append({str(row.pop("date")): row for row in rows})
        plain, odd_days = days
        assert [odd_days.pop(day)["requests"] for day in ("1995-07-01", "2024-05-14")] == [2, 1]
        assert odd_days == plain
        assert [day["complete"] for day in plain.values()] == [True, False]
        assert [day["new_addresses"] for day in plain.values()] == [4, 4]
