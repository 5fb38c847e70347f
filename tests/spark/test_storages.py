"""The source over a spool in a real S3 gateway: planned by names alone, read where there are pyarrow and obstore, and patient."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from framework.spark import options, reader, trimming
from framework.spark.reader import NsqBatchReader, NsqStreamReader
from framework.spool import Spool, SpoolError, numbered, segment
from framework.spool.root import root_of
from framework.spool.storage import Remote, StorageError
from framework.testing.servers import ROOT, Server
from framework.testing.storages import Gateway
from pyspark_nsq import lag
from tests.spark.conftest import messages
from tests.spark.test_kill import commits, start_driver, wait_for_commits
from tests.spark.test_reader import Eager
from tests.storages import Memory

__all__ = ["start_driver"]

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]  # a gateway is built once
SCRIPT = Path(__file__).parent / "scripts" / "executor.py"


def stream(url: str, **more: str) -> NsqStreamReader:
    return Eager(options.stream_read({"spoolDir": url, "collector": "external", **more}))


def ids(source: NsqStreamReader, begin: dict[str, Any], end: dict[str, Any]) -> list[str]:
    tasks = pickle.loads(pickle.dumps(source.partitions(begin, end)))
    worker = pickle.loads(pickle.dumps(source))
    return [name for task in tasks for rows in worker.read(task) for name in rows["message_id"].to_pylist()]


def land(url: str, *bounds: int) -> None:
    with Spool(url, "a", remember=0) as spool:
        for first, last in pairwise(bounds):
            spool.land(messages(first, last))


def test_a_stream_reads_each_row_once_in_batches_of_its_size(spool_url: str) -> None:
    source = stream(spool_url)
    begin = source.initialOffset()
    assert source.latestOffset(begin, ReadAllAvailable()) is begin
    land(spool_url, 0, 10, 20)
    read, sizes = [], []
    while (end := source.latestOffset(begin, ReadMaxRows(7))) != begin:
        read += ids(source, begin, end)
        sizes.append(len(read))
        begin = end
    assert sizes == [7, 14, 20]
    assert read == [f"{n:016x}" for n in range(20)]


@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_rows_are_read_where_there_are_pyarrow_and_obstore_alone(spool_url: str, mode: str) -> None:
    land(spool_url, 0, 150, 300)
    given = {"spooldir": spool_url, "minpartitions": "2"}
    if mode == "batch":
        source = NsqBatchReader(options.batch_read(given))
        partitions = source.partitions()
    else:
        source = NsqStreamReader(options.stream_read({**given, "collector": "external"}))  # type: ignore[assignment]
        begin = source.initialOffset()  # type: ignore[attr-defined]
        partitions = source.partitions(begin, source.latestOffset(begin, ReadAllAvailable()))  # type: ignore[call-arg, attr-defined]
    executor = subprocess.run(
        [sys.executable, SCRIPT], input=pickle.dumps((source, partitions)), capture_output=True, cwd=ROOT, check=False, timeout=60
    )
    assert (executor.returncode, executor.stderr.decode()) == (0, "")
    assert executor.stdout.decode().split() == [f"m{n}" for n in range(300)]


def test_planning_opens_no_segment() -> None:
    storage = Memory()
    folder = Remote(storage, "spool")
    with Spool(folder, "a") as spool:
        for n in range(5):
            spool.land(messages(n, n + 1))
    numbered._floors.clear()
    given = options.stream_read({"spoolDir": "s3://bucket/x", "collector": "external"})
    object.__setattr__(given, "spool_dir", folder)
    source = Eager(given)
    storage.verbs.clear()
    begin = source.initialOffset()
    end = source.latestOffset(begin, ReadAllAvailable())
    assert len(source.partitions(begin, end)) == 1
    assert lag(folder, json.dumps(begin)).rows == 5
    assert [name for verb, name in storage.verbs if verb == "read" and name.endswith(".arrow")] == []


def test_a_storage_that_refuses_to_delete_is_read_on(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is full does: the mark that a deleted segment leaves is a put."""
    monkeypatch.setattr(trimming, "_AGAIN", 0.0)
    storage = Memory()
    folder = Remote(storage, "spool")
    with Spool(folder, "a", window=1, remember=0) as spool:
        for n in range(5):
            spool.land(messages(n, n + 1))
    storage.fault = takes_nothing
    given = options.stream_read(
        {"spoolDir": "s3://bucket/x", "collector": "external", "retention": "commit", "dedupeWindow": "1"}
    )
    object.__setattr__(given, "spool_dir", folder)
    source = Eager(given)
    source.prepareForTriggerAvailableNow()
    begin, read = source.initialOffset(), []
    while (end := source.latestOffset(begin, ReadMaxRows(1))) != begin:
        read += ids(source, begin, end)
        source.commit(begin := end)
    assert read == [f"{n:016x}" for n in range(5)]
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == "spool memory://tests/spool: it is full; until then what was read stays there"
    storage.fault = lambda *_: None
    until = time.monotonic() + 20
    while [one.number for one in segment.listing(folder / "a")] != [5]:
        assert time.monotonic() < until
        source.latestOffset(begin, ReadMaxRows(1))


def takes_nothing(when: str, verb: str, name: str) -> None:
    if verb == "put":
        raise StorageError(errno.ENOSPC, "it is full")


def test_what_is_committed_is_deleted_and_a_late_query_is_told(spool_url: str) -> None:
    land(spool_url, *range(0, 110, 10))
    source = stream(spool_url, retention="commit", dedupeWindow="25")
    begin = source.initialOffset()
    end = source.latestOffset(begin, ReadMaxRows(65))
    (task,) = source.partitions(begin, end)
    source.commit(end)
    folder = root_of(spool_url) / "a"
    assert [one.number for one in segment.listing(folder)] == [7, 8, 9, 10]
    with pytest.raises(SpoolError, match="was planned and is gone: another query on this spool deletes"):
        list(source.read(task))
    assert len(ids(source, end, source.latestOffset(end, ReadAllAvailable()))) == 35


def test_lag_is_told_by_names_alone(spool_url: str) -> None:
    land(spool_url, 0, 10, 30)
    source = stream(spool_url)
    assert lag(spool_url, None).rows == 30
    end = source.latestOffset(source.initialOffset(), ReadMaxRows(24))
    rows, seconds = lag(spool_url, json.dumps(end))
    assert (rows, seconds < 10) == (6, True)


def test_a_query_waits_for_a_storage_that_is_down(s3: Gateway, spool_url: str, caplog: pytest.LogCaptureFixture) -> None:
    land(spool_url, 0, 10)
    source = stream(spool_url)
    begin = source.initialOffset()
    end = source.latestOffset(begin, ReadAllAvailable())
    (task,) = source.partitions(begin, end)
    s3.kill()
    for _ in range(2):
        assert source.latestOffset(end, ReadAllAvailable()) is end
    source.commit(end)
    assert source.reportLatestOffset() == {"collectors": {"a": [2, 0]}}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "s3://spools does not answer" in caplog.text
    with pytest.raises(OSError, match="s3://spools does not answer"):
        list(source.read(task))  # Spark tries a task again
    s3.start()
    land(spool_url, 10, 15)
    assert len(ids(source, end, source.latestOffset(end, ReadAllAvailable()))) == 5
    s3.kill()
    with pytest.raises(OSError, match="does not answer"):
        source.prepareForTriggerAvailableNow()


def test_a_fresh_query_waits_for_it_as_well(s3: Gateway, spool_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """From its checkpoint, so that Spark asks for no first offset."""
    land(spool_url, 0, 10)
    begin = stream(spool_url).initialOffset()
    s3.kill()
    source = stream(spool_url)
    assert source.latestOffset(begin, ReadAllAvailable()) is begin
    assert source.latestOffset(begin, ReadAllAvailable()) is begin
    s3.start()
    assert len(ids(source, begin, source.latestOffset(begin, ReadAllAvailable()))) == 10


def test_a_batch_whose_storage_goes_down_before_it_is_planned_waits_for_it(
    s3: Gateway, spool_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(spool_url, 0, 10)
    source = stream(spool_url)
    begin = source.initialOffset()
    end = source.latestOffset(begin, ReadAllAvailable())
    s3.kill()
    wait = source._wait
    monkeypatch.setattr(source, "_wait", lambda error: (wait(error), s3.start()))
    (task,) = source.partitions(begin, end)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert sum(rows.num_rows for rows in source.read(task)) == 10
    assert source.latestOffset(end, ReadAllAvailable()) is end
    monkeypatch.setattr(reader, "_PATIENCE", 0.0)
    s3.kill()
    with pytest.raises(OSError, match="s3://spools does not answer"):
        source.partitions(begin, end)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.at_length
def test_a_driver_with_its_collector_is_killed_and_so_is_the_gateway(
    spark: Any,
    start_nsqd: Callable[..., Server],
    *,
    start_driver: Callable[..., subprocess.Popen[bytes]],
    s3: Gateway,
    spool_url: str,
    tmp_path: Path,
) -> None:
    """Nothing is lost, nothing is there twice. The drivers are processes of their own, whose environment has the keys."""
    nsqd = start_nsqd("--msg-timeout=2s")
    bodies = [b"m%d" % n for n in range(10_000)]
    nsqd.http("/mpub?topic=orders", b"\n".join(bodies[:5000]))
    first = start_driver(nsqd, spool_url)
    wait_for_commits(first, tmp_path, 1)
    s3.kill()
    nsqd.http("/mpub?topic=orders", b"\n".join(bodies[5000:]))
    time.sleep(1.5)
    s3.start()
    wait_for_commits(first, tmp_path, 3)
    os.killpg(first.pid, signal.SIGKILL)  # the driver's Python and its JVM at once
    first.wait()
    assert len(commits(tmp_path)) * 1500 < 10_000, "it was killed in the middle"
    assert start_driver(nsqd, spool_url, "now").wait(150) == 0
    rows = spark.read.parquet(str(tmp_path / "rows"))
    assert Counter(bytes(row.value) for row in rows.select("value").collect()) == Counter(bodies)
