"""Spools in a real HDFS: the five verbs, kills of collectors, of the namenode and of the datanode, and what it may refuse."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from framework.spool import Spool, SpoolError, segment
from framework.spool import hdfs as webhdfs
from framework.spool.root import root_of
from framework.spool.storage import Remote
from framework.testing.servers import ROOT, Server, free_port
from framework.testing.storages import Hdfs
from tests.spool.rows import MakeBatch, ids
from tests.spool.test_kill import wait_until_empty
from tests.spool.test_s3 import _land, collector, landed, published
from tests.spool.test_verbs import (
    test_a_list_may_begin_behind_a_name,
    test_a_list_says_what_there_is_how_large_and_how_old,
    test_a_name_is_taken_by_whoever_comes_first,
    test_large_content_comes_back_byte_for_byte,
    test_of_many_that_want_a_name_one_has_it,
    test_what_is_not_there_is_not_read_and_deleted_without_a_word,
)

__all__ = [
    "collector",
    "test_a_list_may_begin_behind_a_name",
    "test_a_list_says_what_there_is_how_large_and_how_old",
    "test_a_name_is_taken_by_whoever_comes_first",
    "test_large_content_comes_back_byte_for_byte",
    "test_of_many_that_want_a_name_one_has_it",
    "test_what_is_not_there_is_not_read_and_deleted_without_a_word",
]
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.long_run, pytest.mark.timeout(400)]  # it starts for 40 s of CPU
_numbers = count()
EXECUTOR = ROOT / "tests" / "spark" / "scripts" / "executor.py"


@pytest.fixture
def spool_url(hdfs: Hdfs) -> str:
    return hdfs.url(f"test-{next(_numbers)}/spool")


@pytest.fixture
def folder(spool_url: str) -> Remote:
    found = root_of(spool_url)
    assert isinstance(found, Remote)
    return found


@pytest.mark.parametrize(
    "point",
    ["claimed", *(pytest.param(point, marks=pytest.mark.at_length) for point in ("written", "named", "durable"))],
)
def test_a_killed_collector_loses_nothing_and_doubles_nothing(
    start_nsqd: Callable[..., Server], collector: Callable[..., Any], spool_url: str, point: str
) -> None:
    nsqd = start_nsqd("--msg-timeout=2s")
    sent = published(nsqd, 6000)
    assert collector(nsqd, point, 2000).wait(60) == -signal.SIGKILL
    second = collector(nsqd, "never")
    wait_until_empty(nsqd, second)
    assert landed(spool_url) == sent
    assert nsqd.channel_stats("orders", "archive")["timeout_count"] > 0, "the batch did come again"


def test_what_is_killed_in_the_middle_comes_back_and_each_message_is_there_once(
    hdfs: Hdfs, spool_url: str, batch: MakeBatch
) -> None:
    batches = [batch(n, n + 60) for n in range(0, 1000, 50)]
    writers = [threading.Thread(target=_land, args=(spool_url, batches[first:] + batches[:first])) for first in (0, 10)]
    for writer in writers:
        writer.start()
    time.sleep(0.5)
    hdfs.kill()  # both at once
    time.sleep(0.2)
    hdfs.start()
    for writer in writers:
        writer.join(200)
    spool = Spool(spool_url)
    found = segment.listing(spool.folder)
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    assert Counter(ids(spool)) == Counter(f"{n:016x}" for n in range(1010))


@pytest.mark.at_length
def test_kills_of_each_process_while_collectors_are_killed(
    hdfs: Hdfs, start_nsqd: Callable[..., Server], collector: Callable[..., Any], spool_url: str
) -> None:
    nsqd = start_nsqd("--msg-timeout=2s")
    sent = published(nsqd, 50_000)
    points = ["written", "claimed", "named", "durable"]
    running = [collector(nsqd, point, 1000) for point in points]
    for n in range(12):
        time.sleep(1.0)
        if n in (3, 9):
            hdfs.namenode.kill()
        if n in (6, 9):
            hdfs.datanode.kill()
        if n in (3, 6, 9):
            hdfs.start()
        running[n % 4].kill()
        running[n % 4].wait()
        running[n % 4] = collector(nsqd, points[n % 4], 3000)
    last = collector(nsqd, "never")
    wait_until_empty(nsqd, last)
    assert landed(spool_url) == sent


@pytest.mark.at_length
def test_what_is_down_fails_the_batch_which_comes_again(hdfs: Hdfs, spool_url: str, batch: MakeBatch) -> None:
    spool = Spool(spool_url)
    assert spool.land(batch(0, 3)) == 3
    hdfs.datanode.kill()
    with pytest.raises(SpoolError, match=r"3 messages could not be written: .* does not answer, or one of its datanodes"):
        spool.land(batch(3, 6))
    hdfs.start()
    assert spool.land(batch(0, 6)) == 3
    assert len(ids(spool)) == 6


def test_the_namenode_that_answers_is_asked(hdfs: Hdfs, batch: MakeBatch) -> None:
    url = f"webhdfs://127.0.0.1:{free_port()},{hdfs.address}/test-several/spool"
    assert Spool(url).land(batch(0, 3)) == 3
    assert [one.rows for one in segment.listing(root_of(url) / "main")] == [3]


def test_who_may_not_write_there_is_told_what_to_see_to(hdfs: Hdfs, batch: MakeBatch) -> None:
    with pytest.raises(SpoolError, match=r"denies access to /test-mine/spool/.*: see to its permissions, and to who asks"):
        Spool(f"{hdfs.url('test-mine/spool')}?user=somebody").land(batch(0, 3))


def test_an_executor_reads_it_without_a_library(spool_url: str, batch: MakeBatch) -> None:
    pytest.importorskip("pyspark")
    from framework.spark import options
    from framework.spark.reader import NsqBatchReader

    with Spool(spool_url) as spool:
        spool.land(batch(0, 100))
        spool.land(batch(100, 300))
    reader = NsqBatchReader(options.batch_read({"spoolDir": spool_url, "minPartitions": "2"}))
    task = pickle.dumps((reader, reader.partitions()))
    executor = subprocess.run([sys.executable, EXECUTOR], input=task, capture_output=True, cwd=ROOT, check=False, timeout=60)
    assert (executor.returncode, executor.stderr.decode()) == (0, "")
    assert executor.stdout.decode().split() == [f"m{n}" for n in range(300)]


def ask(hdfs: Hdfs, method: str, path: str) -> None:
    url = f"http://{hdfs.address}/webhdfs/v1/{path}&user.name={webhdfs.getpass.getuser()}"
    urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20).close()


def test_a_full_folder_lands_nothing_and_goes_on_once_there_is_room(hdfs: Hdfs, batch: MakeBatch) -> None:
    spool = Spool(hdfs.url("test-full/spool"))
    assert spool.land(batch(0, 3)) == 3
    ask(hdfs, "PUT", "test-full?op=SETQUOTA&namespacequota=8")
    with pytest.raises(SpoolError, match="takes no more: see to the quota of /test-full/spool/"):
        for n in range(3, 9):
            spool.land(batch(n, n + 1))
    ask(hdfs, "PUT", "test-full?op=SETQUOTA&namespacequota=1000")
    assert sum(spool.land(batch(n, n + 1)) for n in range(9)) >= 1
    assert Counter(ids(spool)) == Counter(f"{n:016x}" for n in range(9))


def test_what_a_killed_process_has_begun_goes_after_an_hour(folder: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".old.tmp").put(b"half")
    assert list(folder.list()) == [], "nobody sees it"
    webhdfs._swept.clear()
    (folder / "a").put(b"x")
    assert (folder / ".old.tmp").exists() is not None
    webhdfs._swept.clear()
    monkeypatch.setattr(webhdfs, "_DEAD_AFTER", 0.5)
    time.sleep(1.0)
    (folder / "b").put(b"x")
    assert (folder / ".old.tmp").exists() is None
    assert [entry.name for entry in folder.list()] == ["a", "b"]


def test_a_list_in_several_parts_is_whole(folder: Remote) -> None:
    """This HDFS says ten at a time."""
    for n in range(33):
        (folder / f"{n:04d}").put(b"")
    assert [entry.name for entry in folder.list()] == [f"{n:04d}" for n in range(33)]
    assert [entry.name for entry in folder.list("0008")] == [f"{n:04d}" for n in range(9, 33)]
