"""How far a query is behind its spool."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadMaxRows

from framework.errors import WrongUse
from framework.spark import options
from framework.spark.reader import NsqStreamReader
from pyspark_nsq import Lag, lag

Land = Callable[..., Path]


def test_it_is_what_is_behind_the_offset_and_how_long_the_first_of_that_has_waited(land: Land) -> None:
    folder = land(0, 10)
    land(10, 30)
    land(0, 5, "b", node="b:1")
    now = time.time()
    for name, ago in (("a/00000000000000000001-10", 900), ("a/00000000000000000002-20", 60), ("b/00000000000000000001-5", 30)):
        os.utime(folder / f"{name}.arrow", (now - ago, now - ago))
    source = NsqStreamReader(options.stream_read({"spoolDir": str(folder), "collector": "external"}))
    start = source.initialOffset()
    assert lag(folder, None) == (35, pytest.approx(900, abs=5))
    end = source.latestOffset(start, ReadMaxRows(24))
    assert lag(folder, json.dumps(end)) == (11, pytest.approx(60, abs=5)), "five of b, and 19 of a"
    end = source.latestOffset(end, ReadMaxRows(1000))
    assert lag(folder, json.dumps(end)) == Lag(0, 0.0)
    land(30, 31)
    rows, seconds = lag(folder, json.dumps(end))
    assert (rows, seconds < 5) == (1, True)


def test_where_nothing_was_landed_nothing_waits(tmp_path: Path) -> None:
    assert lag(tmp_path / "to come", None) == Lag(0, 0.0)


def test_an_offset_of_another_spool_says_nothing_of_this_one(land: Land) -> None:
    folder = land(0, 10)
    other = {"epoch": "another", "collectors": {"a": [2, 0]}, "minPartitions": 1, "maxRecordsPerPartition": 1}
    assert lag(folder, json.dumps(other)).rows == 10


def test_a_url_that_no_spool_can_have_is_refused() -> None:
    with pytest.raises(WrongUse, match="is a URL"):
        lag("ftp://host/spool", None)
