"""The job under spark-submit, on executors that are processes of their own and have pyarrow and our reader alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from framework import WrongUse
from framework.testing.servers import ROOT
from tests import quick_spark
from tests.workers.test_job import NOWHERE, events, land, line, path
from workers.api_requests.processes import descendants, kill
from workers.api_requests.stream import session

pytestmark = [pytest.mark.slow, pytest.mark.spark]
NOT_THERE = ("gevent", "greenlet", "msgspec")


def as_py_files(target: Path) -> Path:
    """A zip of what the wheel holds that executors need."""
    with zipfile.ZipFile(target, "w") as archive:
        for package in ("framework", "pyspark_nsq"):
            for file in sorted((ROOT / package).rglob("*.py")):
                archive.write(file, file.relative_to(ROOT))
    return target


def bare_python(folder: Path) -> Path:
    """A Python with all that is installed here but our own packages and NOT_THERE."""
    there = folder / "installed"
    there.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.suffix != ".pth" and not entry.name.startswith((*NOT_THERE, "__editable__", "nsq_workers", "pyspark_nsq")):
            (there / entry.name).symlink_to(entry)
    python = folder / "python"
    # In an executor's own folder without what the driver says, which another machine would not have.
    path = f'case "$PWD" in */app-*) PYTHONPATH= ;; esac; PYTHONPATH=$PYTHONPATH:{there}'
    python.write_text(f'#!/bin/sh\n{path} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


@pytest.fixture
def submitted(tmp_path: Path, java: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The job on two executors, started by spark-submit in a folder that is not the clone's."""
    python = bare_python(tmp_path)
    home = session.home_without_zip(tmp_path)  # where the executors work in
    for name in ("SPARK_HOME", "SPARK_SUBMIT_OPTS"):  # the tests' quick ones are for local masters
        monkeypatch.delenv(name, raising=False)
    for name, value in quick_spark.ANY_JVM.items():
        monkeypatch.setenv(name, value)
    (work := tmp_path / "cwd").mkdir()
    command = [
        home / "bin" / "spark-submit", "--master", "local-cluster[2,1,1024]", "--py-files", as_py_files(tmp_path / "nsq.zip"),
        "--conf", f"spark.pyspark.python={python}", "--conf", f"spark.pyspark.driver.python={sys.executable}",
        "--conf", "spark.ui.enabled=false", ROOT / "workers" / "api_requests" / "stream" / "__main__.py",
        "--until=2000", "--events", f"--spool={tmp_path}/spool", f"--output={tmp_path}/out",
        f"--state={tmp_path}/state", f"--broker={NOWHERE}",
    ]  # fmt: skip
    with (tmp_path / "spark.log").open("wb") as log:
        running = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=work,
            env={**os.environ, "SPARK_HOME": str(home), "PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip
    try:
        yield running
    finally:
        kill([running.pid, *descendants(running.pid)])
        running.communicate()


def executors(below: int) -> list[int]:
    found = []
    for pid in descendants(below):
        with suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@pytest.mark.long_run
@pytest.mark.timeout(900)
def test_on_executors_with_the_reader_alone_of_which_one_is_killed_every_line_counts_once(tmp_path: Path, submitted: Any) -> None:
    land(tmp_path / "spool", 0, 1000)
    log = tmp_path / "spark.log"
    try:
        while not any(sum(counts.values()) for counts in events(submitted, "lines")["done"].values()):
            pass  # the first batch of one channel is done, the others are in the middle of theirs
    except pytest.fail.Exception:
        pytest.fail(log.read_text()[-4000:])
    os.kill(executors(submitted.pid)[0], signal.SIGKILL)
    land(tmp_path / "spool", 1000, 2000)
    while min(sum(counts.values()) for counts in events(submitted, "lines")["done"].values()) < 2000:
        pass
    # The suspects cannot be published, and all else is done.
    paths = ds.dataset(tmp_path / "out" / "archive").to_table(["path"])["path"].to_pylist()
    assert Counter(paths) == Counter(path(n) for n in range(2000) if n % 5)
    raw = ds.dataset(tmp_path / "out" / "rejected").to_table(["raw"])["raw"].to_pylist()
    assert Counter(raw) == Counter(line(n) for n in range(0, 2000, 5))
    days = pq.read_table(tmp_path / "out" / "growth" / "by_day.parquet").to_pylist()
    assert (sum(day["requests"] for day in days), sum(day["new_addresses"] for day in days)) == (1600, 10)


def test_a_given_session_keeps_what_its_user_has_set_and_is_not_stopped(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = spark.newSession()
    given.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    monkeypatch.setattr(session.SparkSession, "getActiveSession", lambda: given)
    taken = session.start("test", tmp_path, master="local[7]", short=True)
    assert taken.spark is given
    assert given.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert given.conf.get("spark.sql.parquet.compression.codec") == "zstd", "nobody has set it"
    taken.fit(given)
    assert given.conf.get("spark.sql.shuffle.partitions") == "2", "the tests' session says so"
    taken.stop()
    assert given.range(3).count() == 3
    assert taken.death() == ""


def test_a_shuffle_has_as_many_partitions_as_tasks_can_run_at_once(spark: Any) -> None:
    given = spark.newSession()
    given.conf.unset("spark.sql.shuffle.partitions")
    taken = session.Session(given)
    taken.fit(given)
    assert given.conf.get("spark.sql.shuffle.partitions") == str(spark.sparkContext.defaultParallelism) == "2"


def test_a_session_whose_times_have_no_zone_is_refused(spark: Any) -> None:
    given = spark.newSession()
    given.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    with pytest.raises(WrongUse, match="give the job a session with TIMESTAMP_LTZ"):
        session.Session(given)


def test_spark_connect_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002")
    with pytest.raises(WrongUse, match="start the job with spark-submit or --master there"):
        session.start("test", tmp_path)
