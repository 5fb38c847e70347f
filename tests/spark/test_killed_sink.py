"""kill -9 of the sink's Python in the middle of publishing: Spark runs its task again, and no handler is called twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from framework.testing.servers import ROOT, Server
from framework.testing.workers import Worker, working
from tests.house.pages import blocks

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.slow, pytest.mark.long_run]
KILLS = int(os.environ.get("SINK_KILLS", "3"))
PAGE = ROOT / "docs" / "spark.md"
SCRIPT = Path(__file__).parent / "scripts" / "sink.py"
ROWS = max(4_000, 1_000 * KILLS)
"""The page's 4,000, or more: a quick machine has published those before it could be killed twenty times."""


@pytest.fixture
def start_sink(java: None, tmp_path: Path) -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Starts drivers, and ends them with all that they started."""
    started: list[subprocess.Popen[bytes]] = []

    def start(code: Path) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(SCRIPT), str(code)]
        log = (tmp_path / "driver.log").open("wb")
        started.append(subprocess.Popen(command, env=environment, start_new_session=True, cwd=tmp_path, stdout=log, stderr=log))
        return started[-1]

    yield start
    for driver in started:
        if driver.poll() is None:
            for process in psutil.Process(driver.pid).children(recursive=True):
                process.kill()
            driver.kill()
            driver.wait()


def shown(nsqd: Server, folder: Path) -> tuple[Path, Path]:
    """The page's code that publishes, and its module with the handler, with the addresses of this test."""
    texts = [block.text for block in blocks(PAGE)]
    here = {"127.0.0.1:4150": nsqd.address, "/data": str(folder)}
    found = []
    for name, word in (("publishing.py", "invoices = spark.range"), ("printing.py", "# printing.py")):
        (text,) = (text for text in texts if word in text)
        for shown_there, this in here.items():
            text = text.replace(shown_there, this)
        (folder / name).write_text(text)
        found.append(folder / name)
    return found[0], found[1]


def kill_in_the_middle(driver: subprocess.Popen[bytes], nsqd: Server, kills: int) -> None:
    """Kill a Python process of the driver that is connected to nsqd, each time after it has published some."""
    killed, before = 0, 0
    until = time.monotonic() + 60 + 10 * kills
    while killed < kills:
        assert driver.poll() is None, f"it ended after {killed} kills"
        assert time.monotonic() < until, f"{killed} kills"
        stored = published(nsqd)
        if stored >= before + 30 and (process := publishing(driver, nsqd)) is not None:
            process.kill()
            killed, before = killed + 1, published(nsqd)
        time.sleep(0.005)


def publishing(driver: subprocess.Popen[bytes], nsqd: Server) -> psutil.Process | None:
    with suppress(psutil.Error):
        for process in psutil.Process(driver.pid).children(recursive=True):
            with suppress(psutil.Error):
                if "pyspark.daemon" in process.cmdline() and any(
                    one.raddr and one.raddr.port == nsqd.tcp_port for one in process.net_connections("tcp")
                ):
                    return process
    return None


def published(nsqd: Server) -> int:
    topics = nsqd.http("/stats?format=json&topic=invoices")["topics"]
    return int(topics[0]["message_count"]) if topics else 0


@pytest.mark.timeout(120 + 15 * KILLS)
def test_a_killed_sink_task_gives_no_handler_call_twice(
    start_nsqd: Callable[..., Server], start_sink: Callable[[Path], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    nsqd = start_nsqd()
    publishing_code, module = shown(nsqd, tmp_path)
    one_by_one = publishing_code.read_text().replace(".save()", '.option("mpubMaxMessages", 1).save()')
    publishing_code.write_text(one_by_one.replace("0, 4000,", f"0, {ROWS},"))  # so that a kill finds a task in the middle
    with working("run", module.stem, "--broker", f"nsq://{nsqd.address}?headers=true", cwd=tmp_path) as worker:
        driver = start_sink(publishing_code)
        kill_in_the_middle(driver, nsqd, KILLS)
        assert driver.wait(timeout=100) == 0, (tmp_path / "driver.log").read_text()[-3000:]
        handled = settled(worker, nsqd)
    repeats = published(nsqd) - ROWS
    print(f"{KILLS} kills, {ROWS} rows, {repeats} published again, {len(handled)} calls")
    assert repeats >= KILLS, "what was killed had published"
    assert Counter(handled) == {f"invoice {number}": 1 for number in range(ROWS)}


def settled(worker: Worker, nsqd: Server) -> list[Any]:
    """What was printed when nothing is left, and nothing waits to come again."""

    def left() -> int:
        stats = nsqd.channel_stats("invoices", "print")
        return int(stats["depth"]) + int(stats["in_flight_count"]) + int(stats["deferred_count"])

    until, looks = time.monotonic() + 90, 0
    while looks < 6:  # one that is on its way from the queue to a client is in none of the counts
        looks = 0 if left() else looks + 1
        assert time.monotonic() < until
        time.sleep(0.1)
    assert worker.stop() == 0
    return list(worker.out)
