"""Spark's driver is killed while its query consumes an nsqd: its Python, its JVM, or both at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from framework import Publisher
from framework.testing import servers
from framework.testing.processes import left_after
from framework.testing.servers import ROOT
from tests.chaos.spark_faults import needs_java
from tests.chaos.trial import Scenario, Trial, Verdict

_AT_ONCE = 100
_MOST_WAITING = 3_000
_PATIENCE = 240.0
_ALONE = 60.0
"""Seconds within which what a killed driver left must have ended by itself."""


@dataclass
class DriverTrial(Trial):
    """A trial whose worker is a driver: it lands what it consumes in a spool of its own, and copies that to Parquet."""

    nsqd: servers.Server | None = None
    driver: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[Trial]:
        try:
            with super().running():
                yield self
        finally:
            for one in self._family():
                with suppress(psutil.Error):
                    one.kill()

    def start_worker(self) -> None:
        """Returns when it has done another batch."""
        self._start()
        before = self._batches()
        self._wait(lambda: self._batches() > before, "a batch")

    def end(self) -> None:
        """A last driver does what is there."""
        (self.folder / "end").touch()
        driver = self._start()
        self._wait(lambda: driver.poll() == 0, "the end")

    def kill_driver(self, number: int) -> None:
        """By turns Python and its JVM at once, the JVM alone, and Python alone; returns when all that it left is gone."""
        assert self.driver is not None
        family = self._family()
        jvms = [one for one in family if _is_jvm(one)]
        for one in (family, jvms, [psutil.Process(self.driver.pid)])[number % 3]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        with suppress(subprocess.TimeoutExpired):
            self.driver.wait(_ALONE)
        if left := left_after([one.pid for one in family], _ALONE):
            raise RuntimeError(f"what the killed driver left does not end by itself: {left}")
        self.harmless += 1

    def _publish(self, stop: threading.Event) -> None:
        """No more than a driver has done soon, at the end too."""
        assert self.nsqd is not None
        publisher = Publisher(self.publish_to)
        while not stop.wait(0.05):
            if int(self.nsqd.channel_stats("chaos", "spark")["depth"]) < _MOST_WAITING:
                numbers = range(self.next, self.next + _AT_ONCE)
                publisher.publish_many("chaos", [b"%d" % n for n in numbers])
                self.next = numbers.stop
                self.confirmed.update(numbers)
        publisher.close()

    def _start(self) -> subprocess.Popen[bytes]:
        from tests import quick_spark

        environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), **quick_spark.ANY_JVM}
        command = [sys.executable, "-m", "tests.chaos.embedded_driver", str(self.folder), self.broker]
        with (self.folder / "driver.log").open("wb") as log:
            self.driver = subprocess.Popen(command, env=environ, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
        return self.driver

    def _family(self) -> list[psutil.Process]:
        if self.driver is None or self.driver.poll() is not None:
            return []
        driver = psutil.Process(self.driver.pid)
        return [driver, *driver.children(recursive=True)]

    def _batches(self) -> int:
        commits = self.folder / "checkpoint" / "commits"
        return max((int(one.name) for one in commits.iterdir() if one.name.isdigit()), default=-1) if commits.exists() else -1

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        assert self.driver is not None
        until, batches = time.monotonic() + _PATIENCE, self._batches()
        while not condition():
            if batches != (batches := self._batches()):  # on a busy machine much has been landed, and waits in the spool
                until = time.monotonic() + _PATIENCE
            if time.monotonic() > until or (self.driver.poll() is not None and not condition()):
                log = (self.folder / "driver.log").read_text(errors="replace")
                raise RuntimeError(f"{what}: it did not come to that: {log[-3000:]}")
            time.sleep(0.05)

    def handled(self) -> dict[int, list[int]]:
        file = self.folder / "written"
        return {int(number): [0] * times for number, times in Counter(file.read_text().split() if file.exists() else []).items()}

    def landed(self) -> set[int]:
        return self.confirmed


def _is_jvm(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.name() == "java"
    return False


def drivers_killed(folder: Path, times: int) -> Verdict:
    """In the middle of landing, planning, copying or committing; a last one then does what is left."""
    needs_java()
    (folder / "nsqd").mkdir()
    with servers.running(servers.real_nsqd(folder / "nsqd", "--msg-timeout=2s")) as nsqd:
        for what in ("topic/create?topic=chaos", "channel/create?topic=chaos&channel=spark"):
            nsqd.http(f"/{what}", b"")
        url = f"nsq://{nsqd.address}?http_port={nsqd.http_port}"
        trial = DriverTrial(folder, url, url, nsqd=nsqd)
        with trial.running():
            for number in range(times):
                trial.between(0.0, 1.0)
                trial.kill_driver(number)
                trial.start_worker()
            trial.kill_driver(0)
        time.sleep(2.5)  # what was in flight at the killed one is not there for the last one before
        trial.end()
        if not nsqd.channel_stats("chaos", "spark")["timeout_count"]:
            raise RuntimeError("no message came again: no kill found one between durable and finished, or before")
    return trial.verdict("Spark's driver killed")


ALL: dict[str, tuple[Scenario, int, int]] = {"spark-driver": (drivers_killed, 20, 0)}
"""As in scenarios."""
