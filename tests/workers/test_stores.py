"""What the job keeps on disk: files that a repeated batch does not double, counts, growth, the block list."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from framework import FrameworkError
from workers.api_requests.detect.blocklist import BlockList, Entry
from workers.api_requests.detect.kept import Kept
from workers.api_requests.stream.output import LocalOutput
from workers.api_requests.stream.tally import Tally

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


@pytest.mark.spark
@pytest.mark.slow
class TestTheArchive:
    def test_a_batch_that_runs_again_leaves_every_line_once(self, tmp_path: Path, as_lines: Any) -> None:
        from workers.api_requests.stream.archive import archive
        from workers.api_requests.stream.store import Store

        lines = [f'10.0.0.{n} - - [{12 + n % 3}/May/2024:06:07:08 +0000] "GET /{n} HTTP/1.1" 200 {n}'.encode() for n in range(30)]
        lines += [b"bad \xff line %d" % n for n in range(7)]
        for batch in (0, 0, 1, 1):
            some = lines[:20] if batch == 0 else lines[20:]
            archived = Store(LocalOutput(tmp_path), "archive", by="date")
            counts = archive(as_lines(some), batch, archived=archived, rejected=Store(LocalOutput(tmp_path), "rejected"))
            assert sum(counts) == len(some)
        raw = [
            row["raw"]
            for folder in ("archive", "rejected")
            for row in ds.dataset(tmp_path / folder).to_table(["raw"]).to_pylist()
        ]
        assert Counter(raw) == Counter(lines)
        assert len(list((tmp_path / "archive" / "date=2024-05-12").glob("*"))) == 2  # one file a day and batch

    def test_what_a_kill_left_of_a_batch_does_not_stay(self, tmp_path: Path, as_lines: Any) -> None:
        """Some of its files are there. Others lie where Spark's committer takes whatever it finds: it asks for no owner."""
        from workers.api_requests.stream.archive import archive
        from workers.api_requests.stream.store import Store

        def run(batch: int, some: list[bytes]) -> tuple[int, int]:
            output = LocalOutput(tmp_path)
            stores = Store(output, "archive", by="date"), Store(output, "rejected")
            return archive(as_lines(some), batch, archived=stores[0], rejected=stores[1])

        lines = [f'h - - [{12 + n % 3}/May/2024:06:07:08 +0000] "GET /{n} HTTP/1.1" 200 {n}'.encode() for n in range(30)]
        run(0, lines[:10])
        run(1, lines)
        left = tmp_path / "archive" / "_temporary" / "0" / "task_20240512_0001_m_000000"
        shutil.copytree(tmp_path / "archive" / "date=2024-05-12", left / "date=2024-05-12")
        run(1, lines[10:])
        assert ds.dataset(tmp_path / "archive").count_rows() == 30
        assert sorted(ds.dataset(tmp_path / "archive").to_table(["raw"])["raw"].to_pylist()) == sorted(lines)

    def test_files_that_lack_rows_fail_the_batch_and_leave_nothing_of_it(
        self, tmp_path: Path, as_lines: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on a cluster whose executors write on disks of their own."""
        from workers.api_requests.stream.archive import archive
        from workers.api_requests.stream.store import NotShared, Store

        lines = [f'h - - [{12 + n % 3}/May/2024:06:07:08 +0000] "GET /{n} HTTP/1.1" 200 {n}'.encode() for n in range(30)]
        archived, rejected = Store(LocalOutput(tmp_path), "archive", by="date"), Store(LocalOutput(tmp_path), "rejected")
        some = as_lines(lines).repartition(2)  # of which each writes three files
        real = LocalOutput.rows

        def elsewhere(keep: int) -> None:
            def rows(self: LocalOutput, pattern: str) -> int | None:
                for part in sorted(self.folder.glob(f"{pattern}/*.parquet"))[keep:]:
                    part.unlink()
                return real(self, pattern)

            monkeypatch.setattr(LocalOutput, "rows", rows)

        for keep, there in ((0, 0), (4, 20)):
            elsewhere(keep)
            with pytest.raises(NotShared, match=rf"batch 0: Spark has written 30 rows .* and {there} are there: .* share"):
                archive(some, 0, archived=archived, rejected=rejected)
            assert not list((tmp_path / "archive").rglob("*.parquet"))
        monkeypatch.undo()
        assert archive(some, 0, archived=archived, rejected=rejected) == (30, 0)
        assert ds.dataset(tmp_path / "archive").count_rows() == 30

    def test_a_batch_of_nothing_is_no_error(self, tmp_path: Path, spark: Any) -> None:
        from workers.api_requests.stream.store import Store

        store = Store(LocalOutput(tmp_path), "s")
        assert [store.write(spark.range(0), batch) for batch in (0, 0, 1)] == [0, 0, 0]
        assert not list(tmp_path.rglob("*.parquet"))

    def test_it_holds_every_row_whatever_spark_is_told_of_the_size_of_files(self, tmp_path: Path, spark: Any) -> None:
        from workers.api_requests.stream.store import Store

        spark.conf.set("spark.sql.files.maxRecordsPerFile", "3")
        try:
            for by in (None, "id"):
                rows = spark.range(30).selectExpr("id % 2 AS id", "id AS n")
                assert Store(LocalOutput(tmp_path), f"by-{by}", by=by).write(rows, 0) == 30
                assert ds.dataset(tmp_path / f"by-{by}").count_rows() == 30
        finally:
            spark.conf.unset("spark.sql.files.maxRecordsPerFile")


@pytest.mark.spark
@pytest.mark.slow
class TestGrowth:
    def test_is_exact_in_whatever_order_the_lines_come(self, tmp_path: Path, shipped: Any) -> None:
        from pyspark.sql import functions as f

        from workers.api_requests.detect.growth.counts import Growth
        from workers.api_requests.stream.parse import requests

        good = requests(shipped)
        order = list(range(3))
        random.Random(3).shuffle(order)
        for batch, part in enumerate([*order, order[-1]]):  # the last one runs again
            some = good.where(f.pmod(f.xxhash64("raw"), f.lit(3)) == part)
            kept = Kept(tmp_path / "hours")
            Growth(kept, tmp_path / "growth.sqlite", LocalOutput(tmp_path)).count(some, min(batch, 2))
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
        from workers.api_requests.detect.growth.counts import Growth
        from workers.api_requests.stream.parse import parse, requests

        def line(address: int, when: str) -> bytes:
            return f'10.0.0.{address} - - [{when} +0000] "GET / HTTP/1.1" 200 1'.encode()

        lines = [line(n, f"{12 + n // 4}/May/2024:06:{n:02}:00") for n in range(8)]
        odd = [line(3, "01/Jul/1995:00:00:01"), line(99, "01/Jul/1995:00:00:01"), line(3, "14/May/2024:04:00:00")]
        days: list[dict[str, Any]] = []
        for name, some in (("plain", lines), ("odd", [*lines, *odd])):
            parsed = requests(parse(as_lines(some, taken=datetime(2024, 5, 13, 8, tzinfo=UTC))))
            kept = Kept(tmp_path / name)
            (tmp_path / f"{name}-out").mkdir()
            Growth(kept, tmp_path / f"{name}.sqlite", LocalOutput(tmp_path / f"{name}-out")).count(parsed, 0)
            rows = pq.read_table(tmp_path / f"{name}-out" / "growth" / "by_day.parquet").to_pylist()
            days.append({str(row.pop("date")): row for row in rows})
        plain, odd_days = days
        assert [odd_days.pop(day)["requests"] for day in ("1995-07-01", "2024-05-14")] == [2, 1]
        assert odd_days == plain
        assert [day["complete"] for day in plain.values()] == [True, False]
        assert [day["new_addresses"] for day in plain.values()] == [4, 4]
