"""kill -9 of the Spark driver in the middle of a stream, and a restart from its checkpoint: nothing lost, nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from framework.testing.processes import left_after
from framework.testing.servers import Server
from tests.spark.scripts.driver import start

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.slow, pytest.mark.long_run]
SCRIPT = Path(__file__).parent / "scripts" / "driver.py"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def start_driver(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts drivers, and ends them with all that they started."""
    started: list[subprocess.Popen[bytes]] = []

    def start(nsqd: Server, *more: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(SCRIPT), str(tmp_path), nsqd.address, *more]
        started.append(subprocess.Popen(command, env=environment, start_new_session=True, cwd=tmp_path))
        return started[-1]

    yield start
    for driver in started:
        if driver.poll() is None:
            for process in psutil.Process(driver.pid).children(recursive=True):
                process.kill()
            driver.kill()
            driver.wait()


@pytest.mark.timeout(240)
def test_a_killed_driver_loses_nothing_and_doubles_nothing(
    spark: Any, start_nsqd: Callable[..., Server], start_driver: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    nsqd = start_nsqd("--msg-timeout=2s")
    bodies = [b"m%d" % n for n in range(10_000)]
    nsqd.http("/mpub?topic=orders", b"\n".join(bodies[:5000]))

    first = start_driver(nsqd)
    wait_for_commits(first, tmp_path, 2)
    family = psutil.Process(first.pid).children(recursive=True)
    nsqd.http("/mpub?topic=orders", b"\n".join(bodies[5000:]))  # so that the kill finds messages on every step of the way
    os.killpg(first.pid, signal.SIGKILL)  # the driver's Python and its JVM at once
    first.wait()
    assert len(commits(tmp_path)) * 1500 < 10_000, "it was killed in the middle"
    assert left_after([one.pid for one in family], 15) == [], "what the killed driver left ends by itself"

    assert start(spark, tmp_path, nsqd.address, availableNow=True).awaitTermination(120)  # in another driver, this one
    rows = spark.read.parquet(str(tmp_path / "rows"))  # Spark reads by the sink's log, and so does not see orphans
    assert Counter(bytes(row.value) for row in rows.select("value").collect()) == Counter(bodies)


def commits(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder / "checkpoint" / "commits") if name.isdigit()]


def wait_for_commits(driver: subprocess.Popen[bytes], folder: Path, count: int) -> None:
    until = time.monotonic() + 90
    while not (folder / "checkpoint" / "commits").exists() or len(commits(folder)) < count:
        assert driver.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
