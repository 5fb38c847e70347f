"""kill -9 of the Spark driver in the middle of a stream, and a restart from its checkpoint: nothing lost, nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from framework.testing.servers import Server

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.slow]
SCRIPT = Path(__file__).parent / "scripts" / "driver.py"
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(240)
def test_a_killed_driver_loses_nothing_and_doubles_nothing(spark: Any, start_nsqd: Callable[..., Server], tmp_path: Path) -> None:
    nsqd = start_nsqd("--msg-timeout=2s")
    sent = Counter(b"m%d" % n for n in range(10_000))
    bodies = list(sent)
    nsqd.http("/mpub?topic=orders", b"\n".join(bodies[:5000]))

    first = start_driver(tmp_path, nsqd, "run")
    family = wait_for_commits(first, tmp_path, 2)
    nsqd.http("/mpub?topic=orders", b"\n".join(bodies[5000:]))  # so that the kill finds messages on every step of the way
    os.killpg(first.pid, signal.SIGKILL)  # the driver's Python and its JVM at once
    first.wait()
    committed = len(commits(tmp_path))
    assert committed * 1500 < 10_000, "it was killed in the middle"

    try:
        last = start_driver(tmp_path, nsqd, "finish")
        assert last.wait(120) == 0
        rows = spark.read.parquet(str(tmp_path / "rows"))  # Spark reads by the sink's log, and so does not see orphans
        assert Counter(bytes(row.value) for row in rows.select("value").collect()) == sent
        _, alive = psutil.wait_procs(family, timeout=10)
        assert alive == [], "what the killed driver left has ended by itself"
    finally:
        for process in family:
            if process.is_running():
                process.kill()


def start_driver(folder: Path, nsqd: Server, how: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder), nsqd.address, how], env=environment, start_new_session=True, cwd=folder
    )


def commits(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder / "checkpoint" / "commits") if name.isdigit()]


def wait_for_commits(driver: subprocess.Popen[bytes], folder: Path, count: int) -> list[psutil.Process]:
    """Returns the driver's descendants once ``count`` batches are committed."""
    until = time.monotonic() + 90
    while not (folder / "checkpoint" / "commits").exists() or len(commits(folder)) < count:
        assert driver.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    return psutil.Process(driver.pid).children(recursive=True)
