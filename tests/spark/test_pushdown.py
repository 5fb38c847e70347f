"""Days of segments in a real S3 gateway and a real HDFS: how many of them a query opens, by what the storage was asked for."""

from __future__ import annotations

import os
import pickle
import time
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, LessThan

from framework.message import Batch, Message
from framework.spark import options
from framework.spark.reader import NsqBatchReader
from framework.spool import Spool, numbered
from framework.spool.hdfs import Hdfs as HdfsStorage
from framework.testing.storages import Gateway, Hdfs
from tests.origins import Source

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
HOURS = 3 * 24
NODES = ("one:4150", "two:4150", "three:4150")


def at(hour: int) -> datetime:
    return datetime.fromtimestamp(1_717_200_000 + 3600 * hour, UTC)


def land_days(url: str) -> None:
    """A segment an hour, of one node each, and of all of them in the last."""
    with Spool(url, "a", remember=0) as spool:
        for hour in range(HOURS):
            origins = [Source(node=node) for node in (NODES if hour == HOURS - 1 else [NODES[hour % len(NODES)]])]
            taken = int(at(hour).timestamp()) * 10**9
            spool.land(Batch([Message(b"%08x%08x" % (hour, n), taken + n, 1, b"m", one) for n, one in enumerate(origins)]))


def rows_read(url: str, *filters: Filter) -> list[tuple[int, str]]:
    """The segments and nodes of the rows that a query is given, by what another process knows."""
    for known in (numbered._floors, numbered._run_lists, numbered._marked):
        known.clear()
    source = NsqBatchReader(options.batch_read({"spoolDir": url, "minPartitions": "1"}))
    source.pushFilters(list(filters))
    tasks, worker = source.partitions(), pickle.loads(pickle.dumps(source))
    rows = [row for task in tasks for some in worker.read(pickle.loads(pickle.dumps(task))) for row in some.to_pylist()]
    return [(row["segment"], row["nsqd"]) for row in rows]


HOUR = [GreaterThanOrEqual(("timestamp",), at(50)), LessThan(("timestamp",), at(51))]
CASES: list[tuple[list[Filter], list[int]]] = [
    (HOUR, [51, 52]),  # 52 begins as that hour ends
    ([*HOUR, EqualTo(("nsqd",), NODES[50 % 3])], [51]),
    ([*HOUR, EqualTo(("nsqd",), "four:4150")], []),
    ([EqualTo(("nsqd",), NODES[0])], [*range(1, HOURS, 3), HOURS]),
    ([In(("nsqd",), NODES[:2]), LessThan(("timestamp",), at(3))], [1, 2, 4]),
]


def test_in_an_object_store_an_hour_and_a_node_open_only_their_segments(s3: Gateway, spool_url: str) -> None:
    land_days(spool_url)
    begin = len(s3.reads())

    def opened() -> list[int]:
        return [int(key[-26:-6]) for key in s3.reads()[begin:] if key.endswith(".arrow")]

    expected: list[int] = []
    for filters, needed in CASES:
        found = rows_read(spool_url, *filters)
        assert [number for number, _ in found] == [number for number in needed for _ in (NODES if number == HOURS else [0])]
        expected += needed
    until = time.monotonic() + 20
    while len(opened()) < len(expected) and time.monotonic() < until:
        time.sleep(0.05)
    assert opened() == expected


@pytest.mark.slow
@pytest.mark.long_run
def test_in_hdfs_as_well(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is asked for: the namenode counts that as well, and tells it ten seconds later."""
    opened: list[int] = []
    ask = HdfsStorage._ask

    def asked(storage: Any, method: str, name: str, verb: str, *more: Any, **options: str) -> bytes:
        if verb == "OPEN" and name.endswith(".arrow"):
            opened.append(int(name[-26:-6]))
        return ask(storage, method, name, verb, *more, **options)

    url = hdfs.url(f"test-{os.getpid()}/pushdown")
    land_days(url)
    monkeypatch.setattr(HdfsStorage, "_ask", asked)
    for filters, needed in CASES:
        opened.clear()
        assert {number for number, _ in rows_read(url, *filters)} == set(needed)
        assert opened == needed
