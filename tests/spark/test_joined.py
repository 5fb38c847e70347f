"""The reader while small segments are joined under it: the same rows in the same places, whatever was planned before."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadMaxRows

from framework.spark import options
from framework.spark.lag import lag
from framework.spark.reader import NsqBatchReader, NsqStreamReader
from framework.spool import Spool, runs, segment
from tests.spark.conftest import messages
from tests.spark.test_reader import EVERYTHING, reader

Place = tuple[str, int, int]


def places(source: NsqStreamReader, tasks: list[Any]) -> list[Place]:
    worker, found = pickle.loads(pickle.dumps(source)), list[Place]()
    for rows in (rows for task in tasks for rows in worker.read(task)):
        found += zip(*(rows[name].to_pylist() for name in ("message_id", "segment", "position")), strict=True)
    return found


@pytest.fixture
def joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Callable[[], None], list[Place]]:
    """A spool of 30 small segments, what joins them, and its rows."""
    monkeypatch.setattr(runs, "BLOCK", 5)
    monkeypatch.setattr(runs, "GRACE", 0.0)
    expected = []
    with monkeypatch.context() as without:
        without.setattr(segment, "compact", lambda *_: True)
        with Spool(tmp_path, "a") as spool:
            for n in range(30):
                spool.land(messages(10 * n, 10 * n + 1 + n % 3))
                expected += [(f"{10 * n + row:016x}", n + 1, row) for row in range(1 + n % 3)]

    def join() -> None:
        assert segment.compact(tmp_path / "a", 60.0)
        assert [one.first for one in segment.listing(tmp_path / "a")][:4] == [1, 6, 11, 16]

    return tmp_path, join, expected


def test_batches_end_anywhere_in_what_was_joined_and_are_planned_the_same_before_and_after(joined: Any) -> None:
    folder, join, expected = joined
    source = reader(folder, minPartitions="3")
    start = source.initialOffset()
    offsets, found = [start], list[Place]()
    while (end := source.latestOffset(offsets[-1], ReadMaxRows(7))) != offsets[-1]:
        offsets.append(end)
    plans = [source.partitions(*pair) for pair in pairwise(offsets)]
    before = [[places(source, [task]) for task in plan] for plan in plans]
    join()
    again = reader(folder, minPartitions="3")
    assert again.initialOffset() == start
    assert [[places(again, [task]) for task in again.partitions(*pair)] for pair in pairwise(offsets)] == before
    for at, known in pairwise(offsets):
        assert {**again.latestOffset(at, ReadMaxRows(7)), "read": known["read"]} == known  # which a segment in a run has not
    found = [place for plan in before for task in plan for place in task]
    assert found == expected
    whole = again.latestOffset(start, EVERYTHING)
    assert places(again, again.partitions(start, whole)) == expected
    waits = lag(folder, json.dumps(offsets[2]))
    assert waits.rows == len(expected) - 14


def test_what_was_planned_before_it_was_joined_is_read_after(joined: Any) -> None:
    folder, join, expected = joined
    source = reader(folder)
    start = source.initialOffset()
    tasks = source.partitions(start, source.latestOffset(start, EVERYTHING))
    batch = NsqBatchReader(options.batch_read({"spoolDir": str(folder), "minPartitions": "1"}))
    join()
    assert places(source, tasks) == expected
    by_batch = [row for task in batch.partitions() for rows in batch.read(task) for row in rows["position"].to_pylist()]
    assert by_batch == [row for _, _, row in expected]


def test_a_time_in_what_was_joined_is_begun_at(joined: Any) -> None:
    folder, join, expected = joined
    join()
    for row in (0, 1, 14, 29):
        time = datetime.fromtimestamp(1_700_000_000, UTC)
        source = reader(folder, startingTimestamp=time.isoformat())
        source._options = replace(source._options, from_time=1_700_000_000_123_456_789 + int(expected[row][0], 16))
        start = source.initialOffset()
        assert start["collectors"]["a"] == [expected[row][1], expected[row][2]]
        end = source.latestOffset(start, EVERYTHING)
        assert places(source, source.partitions(start, end)) == expected[row:]


def test_what_is_committed_is_deleted_also_where_it_was_joined(joined: Any) -> None:
    folder, join, expected = joined
    join()
    source = reader(folder, retention="commit", dedupeWindow="1")
    (folder / "a" / "remember").unlink()
    at = source.initialOffset()
    found: list[Place] = []
    while (end := source.latestOffset(at, ReadMaxRows(7))) != at:
        found += places(source, source.partitions(at, end))
        at = end
    source.commit(at)
    assert found == expected
    assert [one.begins for one in segment.listing(folder / "a")] == [30]
