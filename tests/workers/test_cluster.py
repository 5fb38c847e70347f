"""The job on a standalone cluster whose worker has disks of its own: loud, and nothing is gone.

It needs root (a mount namespace stands in for another host) and half a minute, so it runs with ``SPARK_CLUSTER=1`` alone;
that files which lack rows fail a batch is tested in test_stores.py, and that an executor looks at its spool in test_reader.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from framework.testing.servers import ROOT, free_port
from tests.workers.test_job import job, land

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.skipif("SPARK_CLUSTER" not in os.environ, reason="SPARK_CLUSTER=1 starts a cluster, as root"),
]
_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@contextmanager
def cluster(folder: Path, own: Path) -> Iterator[str]:
    """A master, and a worker for whom the folder ``own`` is an empty one; the master's URL."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(_CLASS.parents[1])}
    deploy = "org.apache.spark.deploy"
    commands = [
        [_CLASS, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port())],
        ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs own {own} && exec "$@"', "sh",
         _CLASS, f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory", "2g",
         "--webui-port", str(free_port()), "--work-dir", folder / "worker", url],
    ]  # fmt: skip
    started = []
    with (folder / "cluster.log").open("wb") as log:
        for command in commands:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    try:
        until = time.monotonic() + 120
        while "Registering worker" not in (folder / "cluster.log").read_text():
            assert time.monotonic() < until, (folder / "cluster.log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(30)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("own", "words"),
    [
        ("out", r"NotShared: batch 0: Spark has written \d+ rows .* and 0 are there: this folder must be one that the driver"),
        ("spool", "sees no spool there: spoolDir must be one folder that the driver and every executor share"),
        ("state", ""),
    ],
)
def test_disks_of_its_own_end_the_job_with_a_sentence_where_they_must_be_shared_and_the_state_need_not_be(
    tmp_path: Path, java: None, own: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)  # the tests' quick one is for local masters
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    for name in ("state", "spool", "out"):
        (tmp_path / name).mkdir()
    land(tmp_path / "spool", 0, 7)  # no suspect among them
    with cluster(tmp_path, tmp_path / own) as url:
        ended = job(tmp_path, "--until=7", f"--master={url}")
        _, err = ended.communicate(timeout=400)
    kept = {path.parents[1].name for path in (tmp_path / "out").rglob("archive/date=*/batch=0/*.parquet")}
    assert ended.returncode == (0 if own == "state" else 1), err
    assert len(kept) == (3 if own == "state" else 0)
    assert re.search(words, err), err
