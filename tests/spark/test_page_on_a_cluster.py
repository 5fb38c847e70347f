"""What docs/spark.md shows for a cluster, run as it stands there on a standalone one, whose executors have the wheel alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from framework.testing.servers import ROOT, free_port
from tests import quick_spark
from tests.house.pages import blocks
from tests.house.test_wheel import INSTALL, OURS, Environment, copy_to
from tests.workers.test_job import NOWHERE, land
from tests.workers.test_submit import bare_python
from workers.api_requests.processes import descendants, kill

pytestmark = [pytest.mark.at_length, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]
PATIENCE = 240.0
PACKED = [block.text for block in blocks(ROOT / "docs" / "spark.md") if "venv-pack -o" in block.text]
SHOWN = [block.text for block in blocks(ROOT / "docs" / "spark.md") if "--py-files" in block.text]
QUERY = """
from pyspark.sql import SparkSession
from framework.spark import NsqDataSource

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(NsqDataSource)
print("rows:", spark.read.format("nsq").option("spoolDir", {spool!r}).load().count(), spark.sparkContext.master)
"""


@pytest.fixture
def cluster(tmp_path: Path, java: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A master and a worker; the master's URL."""
    for name in ("SPARK_HOME", "SPARK_SUBMIT_OPTS"):  # the tests' quick ones are for local masters
        monkeypatch.delenv(name, raising=False)
    for name, value in quick_spark.ANY_JVM.items():
        monkeypatch.setenv(name, value)
    home, port, log = Path(pyspark.__file__).parent, free_port(), tmp_path / "cluster.log"
    url, deploy = f"spark://127.0.0.1:{port}", "org.apache.spark.deploy"
    master = [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", f"{port}", "--webui-port", f"{free_port()}"]
    worker = [f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory", "2g", "--webui-port",
              f"{free_port()}", "--work-dir", f"{tmp_path}/worker", url]  # fmt: skip
    with log.open("wb") as out:
        started = [
            subprocess.Popen(
                [home / "bin" / "spark-class", *one], stdout=out, stderr=out, env={**os.environ, "SPARK_HOME": str(home)}
            )
            for one in (master, worker)
        ]
    try:
        until = time.monotonic() + PATIENCE
        while "Registering worker" not in log.read_text():
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        yield url
    finally:
        for process in reversed(started):
            kill([process.pid, *descendants(process.pid)])
            process.wait(30)


def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's own riddle: it is the value of build_isolation
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(bare_python(tmp_path)),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "API_REQUESTS_SPOOL": f"{tmp_path}/spool",
        "API_REQUESTS_OUTPUT": f"{tmp_path}/out",
        "API_REQUESTS_STATE": f"{tmp_path}/state",
        "BROKER_URL": NOWHERE,
    }


def test_what_the_page_shows_runs_on_a_cluster(tmp_path: Path, cluster: str) -> None:
    (clone := tmp_path / "clone").mkdir()
    copy_to(clone)
    land(tmp_path / "spool", 0, 7)  # no suspect among them
    (clone / "query.py").write_text(QUERY.format(spool=f"{tmp_path}/spool/archive"))
    query, job = (text.replace("spark://host:7077", cluster) for text in SHOWN)
    variables = environment(tmp_path)
    done = subprocess.run(
        ["bash", "-ec", query], cwd=clone, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert f"rows: 7 {cluster}" in done.stdout, done.stdout + done.stderr
    with (log := tmp_path / "job.log").open("wb") as out:
        running = subprocess.Popen(["bash", "-ec", f"exec env {job}"], cwd=clone, env=variables, stdout=out, stderr=out)
    try:
        until = time.monotonic() + PATIENCE
        while "archive 7, growth 7, spam 7" not in log.read_text():
            assert running.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        running.send_signal(signal.SIGTERM)
        running.wait(60)
    finally:
        kill([running.pid, *descendants(running.pid)])


def test_an_environment_is_sent_as_the_page_says(tmp_path: Path, cluster: str) -> None:
    """Its own packages are in it; what these need, it has from the tests' environment, or it would be of half a gigabyte."""
    pytest.importorskip("venv_pack")
    made = Environment(tmp_path / "made")
    (clone := tmp_path / "clone").mkdir()
    copy_to(clone)
    installed = made.run(INSTALL, clone)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    (made.site / "borrowed.pth").unlink()
    (made.site / "dependencies.pth").write_text(
        f"import sys; sys.path.append({str(OURS)!r})\n"
    )  # a bare path is refused as editable
    land(tmp_path / "spool", 0, 7)
    (work := tmp_path / "work").mkdir()
    (work / "query.py").write_text(QUERY.format(spool=f"{tmp_path}/spool/archive"))
    (text,) = PACKED
    path = f"{made.bin}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = made.variables() | {"PATH": path, "VIRTUAL_ENV": f"{made.bin.parent}", "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        ["bash", "-ec", text.replace("spark://host:7077", cluster)], cwd=work, env=variables, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert f"rows: 7 {cluster}" in done.stdout, done.stdout + done.stderr
    assert (work / "environment" / "bin" / "workers").exists()
