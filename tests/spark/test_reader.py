"""The stream reader called as Spark calls it, without Spark running."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from framework.message import Batch, Message
from framework.spark import options, trimming
from framework.spark.reader import NsqBatchReader, NsqStreamReader
from framework.spool import Spool, SpoolError, segment
from tests.origins import Source
from tests.spark.conftest import messages
from tests.spool.rows import NOTED

Land = Callable[..., Path]
EVERYTHING = ReadAllAvailable()


class Eager(NsqStreamReader):
    """It looks each time that it is asked, however long the last look took."""

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        self._list_at = 0.0
        return super().latestOffset(start, limit)


def reader(folder: Path, **more: str) -> NsqStreamReader:
    return Eager(options.stream_read({"spoolDir": str(folder), "collector": "external", **more}))


def ids(source: NsqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    tasks = pickle.loads(pickle.dumps(source.partitions(start, end)))
    worker = pickle.loads(pickle.dumps(source))
    return [name for task in tasks for rows in worker.read(task) for name in rows["message_id"].to_pylist()]


def test_a_query_may_start_before_its_collectors(tmp_path: Path, land: Land) -> None:
    source = reader(tmp_path / "spool")
    start = source.initialOffset()
    assert source.latestOffset(start, EVERYTHING) is start
    assert source.partitions(start, start) == []
    land(0, 3)
    end = source.latestOffset(start, EVERYTHING)
    assert ids(source, start, end) == [f"{n:016x}" for n in range(3)]


def test_a_limit_is_kept_inside_segments(land: Land) -> None:
    folder = land(0, 10)
    land(10, 20)
    source = reader(folder)
    start = source.initialOffset()
    sizes, read = [], []
    while (end := source.latestOffset(start, ReadMaxRows(7))) != start:
        read += ids(source, start, end)
        sizes.append(len(read))
        start = end
    assert sizes == [7, 14, 20]
    assert read == [f"{n:016x}" for n in range(20)]


def test_the_limit_of_a_batch_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    assert reader(tmp_path, maxMessagesPerTrigger="65").getDefaultReadLimit() == ReadMaxRows(65)
    assert reader(tmp_path).getDefaultReadLimit() == EVERYTHING


def test_every_row_has_a_place_of_its_own_however_the_batches_fall(land: Land) -> None:
    folder = land(0, 10)
    land(10, 20)
    source = reader(folder, minPartitions="2")
    start = source.initialOffset()
    places = []
    while (end := source.latestOffset(start, ReadMaxRows(7))) != start:
        for task in source.partitions(start, end):
            for rows in source.read(task):
                places += list(zip(*(rows[name].to_pylist() for name in ("collector", "segment", "position")), strict=True))
        start = end
    assert places == [("a", n // 10 + 1, n % 10) for n in range(20)]


def test_a_plan_is_the_same_under_other_options(land: Land) -> None:
    folder = land(0, 100)
    before = reader(folder, minPartitions="4")
    start = before.initialOffset()
    end = before.latestOffset(start, EVERYTHING)
    land(100, 200)
    after = reader(folder, minPartitions="9", maxRecordsPerPartition="3")
    assert [task.spans for task in after.partitions(start, end)] == [task.spans for task in before.partitions(start, end)]
    assert len(before.partitions(start, end)) == 4


def test_available_now_ends_at_what_was_there_when_it_began(land: Land) -> None:
    folder = land(0, 10)
    source = reader(folder)
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    land(10, 20)
    land(0, 5, "late", node="b:1")
    end = source.latestOffset(start, EVERYTHING)
    assert len(ids(source, start, end)) == 10
    assert source.latestOffset(end, EVERYTHING) is end


def test_commit_deletes_only_what_no_batch_needs_and_the_ids_do_not(land: Land) -> None:
    for n in range(0, 100, 10):
        folder = land(n, n + 10)
    source = reader(folder, retention="commit", maxMessagesPerTrigger="65")
    end = source.latestOffset(source.initialOffset(), ReadMaxRows(65))
    source.commit(end)
    assert len(segment.listing(folder / "a")) == 10, "the window of ids covers them all"
    object.__setattr__(source._options, "dedupe_window", 1)
    source.commit(end)
    assert [one.number for one in segment.listing(folder / "a")] == [7, 8, 9, 10]
    later = source.latestOffset(end, EVERYTHING)
    assert ids(source, end, later) == [f"{n:016x}" for n in range(65, 100)]
    source.commit(later)
    assert [one.number for one in segment.listing(folder / "a")] == [10]
    land(100, 110)
    assert source.latestOffset(later, EVERYTHING)["collectors"] == {"a": [12, 0]}


def test_what_the_last_batch_read_is_deleted_before_there_is_a_next_one(land: Land) -> None:
    """Spark says commit of a batch when it plans the next, which never comes where the collectors wait for room."""
    for n in range(0, 100, 10):
        folder = land(n, n + 10)
    source = reader(folder, retention="commit", dedupeWindow="25")
    end = source.latestOffset(source.initialOffset(), EVERYTHING)
    assert len(segment.listing(folder / "a")) == 10, "a batch that is planned may run again"
    assert len(ids(source, source.initialOffset(), end)) == 100
    assert source.latestOffset(end, EVERYTHING) == end
    assert [one.number for one in segment.listing(folder / "a")] == [8, 9, 10]


def test_a_spool_is_gone_through_once_for_what_was_read_however_often_spark_asks(
    land: Land, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does every 14 ms, while there is nothing new."""
    folder, trims = land(0, 10), list[Any]()
    monkeypatch.setattr(trimming, "trim", lambda *arguments: trims.append(arguments))
    source = reader(folder, retention="commit")
    end = source.latestOffset(source.initialOffset(), EVERYTHING)
    trims.clear()
    for _ in range(3):
        assert source.latestOffset(end, EVERYTHING) == end
    assert [(folder, cursor) for folder, cursor, *_ in trims] == [(folder / "a", 2)]


def test_of_what_was_read_a_spool_with_a_limit_keeps_half_as_much(land: Land) -> None:
    for n in range(0, 100, 10):
        folder = land(n, n + 10, body=lambda n: b"x" * 1000)
    (folder / "a" / "limit").write_text("80000\n")
    source = reader(folder, retention="commit")
    end = source.latestOffset(source.initialOffset(), EVERYTHING)
    source.commit(end)
    assert [one.number for one in segment.listing(folder / "a")] == [8, 9, 10]


def test_latest_skips_what_is_there_already(land: Land) -> None:
    folder = land(0, 10)
    source = reader(folder, startingOffsets="latest")
    start = source.initialOffset()
    assert source.latestOffset(start, EVERYTHING) is start
    land(10, 12)
    assert ids(source, start, source.latestOffset(start, EVERYTHING)) == ["000000000000000a", "000000000000000b"]


def test_a_time_to_begin_at_is_looked_for_in_what_the_spool_holds(tmp_path: Path) -> None:
    def taken(*seconds: int, collector: str) -> None:
        rows = [Message(b"%016x" % at, at * 10**9 + 999, 1, b"m", Source(node=collector)) for at in seconds]
        with Spool(tmp_path, collector) as spool:
            spool.land(Batch(rows))

    taken(10, 11, 9, collector="a")
    taken(20, 12, 21, collector="a")  # 12 came again, and late
    taken(15, collector="b")
    whole = [10, 11, 9, 20, 12, 21, 15]
    year_1, year_9999 = -62_135_596_800, 253_402_300_799
    for begin, expected in ((0, whole), (11, [11, 9, 20, 12, 21, 15]), (12, [20, 12, 21, 15]), (21, [21]),
                            (year_1, whole), (year_9999, []), (22, [])):  # fmt: skip
        source = reader(tmp_path, startingTimestamp=datetime.fromtimestamp(begin, UTC).isoformat(), minPartitions="1")
        start = source.initialOffset()
        found = ids(source, start, source.latestOffset(start, EVERYTHING))
        assert [int(name, 16) for name in found] == expected
    taken(23, collector="a")
    assert [int(name, 16) for name in ids(source, start, source.latestOffset(start, EVERYTHING))] == [23]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the segments that were opened."""
    found: list[int] = []
    real = segment.read

    def read(path: Any, *columns: Any) -> Any:
        found.append(int(path.name[:20]))
        return real(path, *columns)

    monkeypatch.setattr(segment, "read", read)
    return found


def a_week(folder: Any, hours: int) -> None:
    """A segment an hour, by two nodes in turns."""
    spool = Spool(folder, "a", shared=True)
    for hour in range(hours):
        origin = Source(node=f"10.0.0.{hour % 2}:4150")
        at = (1_717_200_000 + 3600 * hour) * 10**9
        spool.land(Batch([Message(b"%08x%08x" % (hour, n), at + n * 10**9, 1, b"m", origin) for n in (59, 0, 30)]))
    spool.close()


def at(hour: int, second: int = 0) -> datetime:
    return datetime.fromtimestamp(1_717_200_000 + 3600 * hour + second, UTC)


def test_a_query_that_begins_at_a_time_looks_into_no_segment_before_it(spool_url: str | Path, opened: list[int]) -> None:
    a_week(spool_url, 20)
    opened.clear()
    source = reader(spool_url, startingTimestamp=at(15, 10).isoformat(), minPartitions="1")  # type: ignore[arg-type]
    start = source.initialOffset()
    assert (start["collectors"], opened) == ({"a": [16, 0]}, [16])
    assert len(ids(source, start, source.latestOffset(start, EVERYTHING))) == 5 * 3


@pytest.mark.parametrize(
    ("filters", "needed"),
    [
        ([GreaterThanOrEqual(("timestamp",), at(7)), LessThan(("timestamp",), at(8))], [8, 9]),  # 9: as if it were <=
        ([GreaterThanOrEqual(("timestamp",), at(7)), LessThan(("timestamp",), at(7, 59))], [8]),
        ([EqualTo(("timestamp",), at(7, 30))], [8]),
        ([GreaterThan(("timestamp",), at(7, 59)), LessThanOrEqual(("timestamp",), at(9, -1))], [8, 9]),
        ([GreaterThan(("timestamp",), at(8, -1)), EqualTo(("nsqd",), "10.0.0.1:4150")], [10]),
        ([In(("nsqd",), ("10.0.0.1:4150", "x")), LessThan(("timestamp",), at(3))], [2, 4]),
        ([In(("segment",), (3, 4)), Not(EqualTo(("timestamp",), at(7, 30)))], list(range(1, 11))),  # nothing that helps
        ([GreaterThan(("segment",), 3), EqualTo(("collector",), "a"), LessThanOrEqual(("segment",), 5)], [3, 4, 5]),
        ([EqualTo(("collector",), "b")], []),
        ([EqualTo(("timestamp",), "no time"), IsNotNull(("timestamp",))], list(range(1, 11))),
    ],
)
def test_an_hour_opens_only_its_segments(tmp_path: Path, filters: list[Any], needed: list[int], opened: list[int]) -> None:
    a_week(tmp_path, 10)
    opened.clear()
    source = NsqBatchReader(options.batch_read({"spoolDir": str(tmp_path), "minPartitions": "1"}))
    assert source.pushFilters(filters) == filters, "Spark goes through the rows itself"
    for task in source.partitions():
        for _ in pickle.loads(pickle.dumps(source)).read(task):
            pass
    assert opened == needed


@pytest.mark.parametrize("clock", [-1, -999, -1000, -(2**63), 2**63 - 1, 999])
def test_a_row_is_found_by_the_time_that_it_is_read_with(tmp_path: Path, clock: int) -> None:
    """Whatever the clock of its broker said, before 1970 as well: it is cut to microseconds."""
    with Spool(tmp_path, "a") as spool:
        spool.land(Batch([Message(b"%016x" % 1, clock, 1, b"body", Source())]))
    source = NsqBatchReader(options.batch_read({"spoolDir": str(tmp_path)}))
    (rows,) = (rows for task in source.partitions() for rows in source.read(task))
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=rows["timestamp"].cast("int64")[0].as_py())
    for kind in (EqualTo, GreaterThanOrEqual, LessThanOrEqual):
        source.pushFilters([kind(("timestamp",), at)])
        assert sum(rows.num_rows for task in source.partitions() for rows in source.read(task)) == 1


def test_segments_of_which_no_times_are_known_are_looked_into(tmp_path: Path, opened: list[int]) -> None:
    a_week(tmp_path, 4)
    times = tmp_path / "a" / NOTED
    lines = times.read_bytes().splitlines(keepends=True)
    times.write_bytes(b"".join(lines[:4]) + lines[5][:20])  # the third was cut short
    a_week(tmp_path, 6)  # two more
    opened.clear()
    source = reader(tmp_path, startingTimestamp=at(5).isoformat())
    assert source.initialOffset()["collectors"] == {"a": [6, 0]}
    assert opened == [3, 4, 6]


@pytest.mark.parametrize(
    "line",
    [
        b'[2, ROWS, 1, 2, "one:4150"]', b"[2, ROWS, 1, 2, [[]]]", b"[true, ROWS, 1, 2, null]", b"[2.5, 9, 1, 2, null]",
        b"[1%s, 9, 1, 2, null]" % (18 * b"0" + b"1"), b"[-7, 9, 1, 2, null]", b"{}", b"7", 20_000 * b"[", b"\xff\x00",
    ],
    ids=["words for nodes", "lists for nodes", "true", "fraction", "too high", "below 1", "map", "number", "deep", "no text"],
)  # fmt: skip
def test_a_line_of_times_that_is_not_of_ours_counts_for_nothing(tmp_path: Path, line: bytes) -> None:
    a_week(tmp_path, 2)
    kept = segment.listing(tmp_path / "a")
    before = segment.times_of(tmp_path / "a", kept)
    with (tmp_path / "a" / NOTED).open("ab") as times:
        times.write(line.replace(b"ROWS", b"%d" % kept[0].rows) + b"\n")
    assert segment.times_of(tmp_path / "a", segment.listing(tmp_path / "a")) == before
    a_week(tmp_path, 3)
    assert [one.number for one in segment.listing(tmp_path / "a")] == [1, 2, 3]


def test_the_times_of_deleted_segments_are_forgotten_and_those_of_the_others_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("framework.spool.times._BLOCK", 10)
    a_week(tmp_path, 30)
    kept = segment.listing(tmp_path / "a")
    for one in kept[:20]:
        Path(str(one.path)).unlink()
    with Spool(tmp_path, "a"):
        assert [path.name for path in sorted((tmp_path / "a").glob("times*"))] == [f"times-{first:020d}" for first in (20, 30)]
    assert sorted(segment.times_of(tmp_path / "a", kept)) == list(range(20, 31)), "20 is in the file of 21"


def test_another_spool_under_an_old_checkpoint_is_an_error(land: Land) -> None:
    folder = land(0, 10)
    start = reader(folder).initialOffset()
    end = reader(folder).latestOffset(start, EVERYTHING)
    (folder / "epoch").write_text("another\n")
    with pytest.raises(SpoolError, match="not the spool that the checkpoint knows"):
        reader(folder).latestOffset(end, EVERYTHING)
    with pytest.raises(SpoolError, match="not the spool that the checkpoint knows"):
        reader(folder).partitions(start, end)
    on = reader(folder, failOnDataLoss="false")
    assert on.partitions(start, end) == []
    anew = on.latestOffset(end, EVERYTHING)
    assert len(ids(on, end, anew)) == 10
    assert on.latestOffset(anew, EVERYTHING) is anew


def test_retention_keep_deletes_nothing(land: Land) -> None:
    folder = land(0, 10)
    land(10, 20)
    source = reader(folder)
    object.__setattr__(source._options, "dedupe_window", 1)
    source.commit(source.latestOffset(source.initialOffset(), EVERYTHING))
    assert len(segment.listing(folder / "a")) == 2


def test_a_collector_that_began_anew_is_an_error(land: Land) -> None:
    folder = land(0, 10)
    source = reader(folder)
    start = source.initialOffset()
    end = source.latestOffset(start, EVERYTHING)
    for path in (segment.listing(folder / "a")[0].path, folder / "a" / NOTED):
        path.unlink()
    with pytest.raises(SpoolError, match="numbers began anew"):
        reader(folder).latestOffset(end, EVERYTHING)
    with pytest.raises(SpoolError, match="segments 1 to 1 of collector a are gone"):
        source.partitions(start, end)
    assert reader(folder, failOnDataLoss="false").partitions(start, end) == []


def test_a_segment_that_goes_between_plan_and_read_is_an_error(land: Land) -> None:
    folder = land(0, 10)
    source = reader(folder)
    start = source.initialOffset()
    (task,) = source.partitions(start, source.latestOffset(start, EVERYTHING))
    segment.listing(folder / "a")[0].path.unlink()
    with pytest.raises(SpoolError, match="was planned and is gone"):
        list(source.read(task))
    assert list(reader(folder, failOnDataLoss="false").read(task)) == []


@pytest.mark.parametrize("fails", ["true", "false"])
def test_an_executor_that_sees_another_folder_is_an_error_and_no_loss(land: Land, tmp_path: Path, fails: str) -> None:
    """Without it failOnDataLoss=false skips the rows, and a spool of the executor's own is read in place of the driver's."""
    folder = land(0, 10)
    source = reader(folder, failOnDataLoss=fails)
    start = source.initialOffset()
    tasks = source.partitions(start, source.latestOffset(start, EVERYTHING))
    tasks += NsqBatchReader(options.batch_read({"spoolDir": str(folder), "failOnDataLoss": fails})).partitions()
    folder.rename(tmp_path / "the driver's")
    for task in tasks:
        with pytest.raises(
            SpoolError, match="sees no spool there: spoolDir must be one folder that the driver and every executor"
        ):
            list(source.read(task))
    with Spool(folder, "a") as own:
        own.land(messages(10, 20))
    for task in tasks:
        with pytest.raises(SpoolError, match="sees another spool there"):
            list(source.read(task))


def test_a_damaged_segment_is_named(land: Land) -> None:
    folder = land(0, 10)
    source = reader(folder)
    start = source.initialOffset()
    (task,) = source.partitions(start, source.latestOffset(start, EVERYTHING))
    path = segment.listing(folder / "a")[0].path
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SpoolError, match=f"{path.name} is damaged"):
        list(source.read(task))
