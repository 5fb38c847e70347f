"""The job on a standalone cluster whose workers have disks of their own: loud, and nothing is gone.

A mount namespace stands in for another host, which takes root. That files which lack rows fail a batch is tested in
test_stores.py, and that an executor looks at its spool in test_reader.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds
import pyspark

from framework.testing.servers import ROOT, free_port
from tests.workers.test_job import events, job, kill, land, line, path
from tests.workers.test_submit import executors

_MOUNTS = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.long_run,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not _MOUNTS, reason="a host of its own is a mount namespace here, which takes root"),
]
_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@pytest.fixture(autouse=True)
def quick(java: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' quick JVM, for the cluster's daemons and executors as well: all hosts are this one."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", os.environ["SPARK_SUBMIT_OPTS"])


@contextmanager
def cluster(folder: Path, *own: Path, workers: int = 1, cores: int = 2) -> Iterator[str]:
    """A master, and workers for each of whom the folders ``own`` are empty ones; the master's URL."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    deploy = "org.apache.spark.deploy"
    mounts = " && ".join(f"mount -t tmpfs own {each}" for each in own)
    commands = [
        [_CLASS, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port())],
        *(
            ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh",
             _CLASS, f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", str(cores), "--memory", "1g",
             "--webui-port", str(free_port()), "--work-dir", folder / f"worker-{n}", url]
            for n in range(workers)
        ),
    ]  # fmt: skip
    started = []
    with (folder / "cluster.log").open("wb") as log:
        for command in commands:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    try:
        until = time.monotonic() + 120
        while (folder / "cluster.log").read_text().count("Registering worker") < workers:
            assert time.monotonic() < until, (folder / "cluster.log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(30)


OWN: dict[str, str | None] = {
    "out": r"NotShared: batch 0: Spark has written \d+ rows .* and 0 are there: this folder must be one that the driver",
    "spool": "sees no spool there: --spool must be one folder that the driver and every executor share",
    "state": None,
}
"""What the workers' disks do not share, and the sentence that says that they must."""


def test_disks_of_its_own_end_the_job_with_a_sentence_where_they_must_be_shared_and_the_state_need_not_be(tmp_path: Path) -> None:
    for own in OWN:
        for name in ("state", "spool", "out"):
            (tmp_path / own / name).mkdir(parents=True)
        land(tmp_path / own / "spool", 0, 7)  # no suspect among them
    with cluster(tmp_path, *(tmp_path / own / own for own in OWN)) as url:
        for own, words in OWN.items():
            ended = job(tmp_path / own, "--until=7", f"--master={url}")
            _, err = ended.communicate(timeout=400)
            kept = {path.parents[1].name for path in (tmp_path / own / "out").rglob("archive/date=*/batch=0/*.parquet")}
            assert ended.returncode == (0 if words is None else 1), err
            assert len(kept) == (3 if words is None else 0)
            assert re.search(words or "", err), err


def test_of_two_workers_one_loses_its_executor_and_every_line_counts_once(tmp_path: Path) -> None:
    """The state is one of the driver's: the workers need not share it."""
    for name in ("state", "spool", "out"):
        (tmp_path / name).mkdir()
    land(tmp_path / "spool", 0, 1000)
    with cluster(tmp_path, tmp_path / "state", workers=2, cores=1) as url:
        running = job(tmp_path, "--until=2000", f"--master={url}")
        try:
            while not any(sum(counts.values()) for counts in events(running, "lines")["done"].values()):
                pass  # the first batch of one channel is done, the others are in the middle of theirs
            both = executors(os.getpid())
            assert len(both) == 2
            os.kill(both[0], signal.SIGKILL)
            land(tmp_path / "spool", 1000, 2000)
            while min(sum(counts.values()) for counts in events(running, "lines")["done"].values()) < 2000:
                pass
        finally:
            kill(running)
    assert "exitStatus 137" in (tmp_path / "cluster.log").read_text()
    paths = ds.dataset(tmp_path / "out" / "archive").to_table(["path"])["path"].to_pylist()
    assert Counter(paths) == Counter(path(n) for n in range(2000) if n % 5)
    raw = ds.dataset(tmp_path / "out" / "rejected").to_table(["raw"])["raw"].to_pylist()
    assert Counter(raw) == Counter(line(n) for n in range(0, 2000, 5))
