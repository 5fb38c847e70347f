"""What a query cannot go on from is told with what its user can change: options of the source, or those of who started it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from framework.errors import BadSetting
from framework.spark import named, options
from framework.spark.reader import NsqBatchReader, NsqStreamReader
from framework.spool import SpoolError, segment

Land = Callable[..., Path]
THEIRS = {"spool": "--spool", "lost": "begin anew with an empty --state"}


def another_spool(folder: Path) -> None:
    (folder / "epoch").write_text("another\n")


def a_segment_gone(folder: Path) -> None:
    segment.listing(folder / "a")[0].path.unlink()


def a_damaged_segment(folder: Path) -> None:
    (one,) = segment.listing(folder / "a")
    whole = one.path.read_bytes()
    one.path.unlink()
    one.path.write_bytes(whole[:-100])


def reader(folder: Path, **advice: str) -> NsqStreamReader:
    read = options.stream_read({"spoolDir": str(folder), "collector": "external"})
    return NsqStreamReader(replace(read, advice=named("x", **advice).advice))


@pytest.mark.parametrize("who", ["the source's own", "a program's"])
@pytest.mark.parametrize(
    ("happens", "own", "theirs"),
    [
        (
            another_spool,
            "rows are lost to this query: put back what was there, or start with a new checkpoint, or set failOnDataLoss=false",
            "rows are lost to this query: put back what was there, or begin anew with an empty --state$",
        ),
        (a_segment_gone, "put it back, or start with a new checkpoint, or", "put it back, or begin anew with an empty --state$"),
        (a_damaged_segment, "or remove it and start with a new checkp", "or remove it and begin anew with an empty --state$"),
    ],
)
def test_a_stream_that_lost_rows_says_what_its_user_can_do(
    land: Land, happens: Callable[[Path], None], own: str, theirs: str, who: str
) -> None:
    folder = land(0, 10)
    source = reader(folder, **({} if who == "the source's own" else THEIRS))
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    tasks = source.partitions(start, end)
    happens(folder)
    words = own if who == "the source's own" else theirs
    with pytest.raises(SpoolError, match=words):
        if happens is another_spool:
            source.partitions(start, end)
        for task in tasks:
            list(source.read(task))


@pytest.mark.parametrize(("advice", "option"), [({}, "spoolDir"), (THEIRS, "--spool")])
def test_an_executor_that_sees_another_folder_names_the_option(land: Land, advice: dict[str, str], option: str) -> None:
    source = reader(folder := land(0, 10), **advice)
    (task,) = source.partitions(start := source.initialOffset(), source.latestOffset(start, ReadAllAvailable()))
    another_spool(folder)
    with pytest.raises(SpoolError, match=f"sees another spool there: {option} must be one folder"):
        list(source.read(task))


def test_a_batch_query_has_no_checkpoint(land: Land) -> None:
    folder = land(0, 10)
    source = NsqBatchReader(options.batch_read({"spoolDir": str(folder)}))
    (task,) = source.partitions()
    a_segment_gone(folder)
    with pytest.raises(SpoolError, match=r"put it back, or set failOnDataLoss=false to go on with what is there$"):
        list(source.read(task))


def test_a_run_that_ends_by_itself_needs_a_spool(tmp_path: Path, land: Land) -> None:
    """One that was named wrongly had no rows, for ever, and was made."""
    with pytest.raises(BadSetting, match=f"^option --spool='{tmp_path}/typo': there is no spool in this folder"):
        reader(tmp_path / "typo", **THEIRS).prepareForTriggerAvailableNow()
    assert not (tmp_path / "typo").exists()
    reader(tmp_path / "typo", **THEIRS).initialOffset()  # as a query that waits for it, which has made it then
    with pytest.raises(BadSetting, match="there is no spool in this folder"):
        reader(tmp_path / "typo", **THEIRS).prepareForTriggerAvailableNow()
    reader(land(0, 10)).prepareForTriggerAvailableNow()


@pytest.mark.spark
def test_spark_asks_before_anything_is_made(spark: Any, tmp_path: Path) -> None:
    rows = spark.readStream.format("nsq").option("spoolDir", str(tmp_path / "typo")).option("collector", "external").load()
    stream = rows.writeStream.format("memory").queryName("typo").trigger(availableNow=True)
    with pytest.raises(Exception, match="there is no spool in this folder"):
        stream.start().awaitTermination(60)
    assert not (tmp_path / "typo").exists()
