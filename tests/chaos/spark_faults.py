"""Spark's executors are killed: what they read out of a spool, and what they publish, with keys that a handler knows again."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psutil

from framework.message import Batch, Message
from framework.spool import Spool
from framework.testing import java, servers
from framework.testing.servers import ROOT, ServerMissing
from framework.testing.workers import Worker
from tests.chaos.trial import Scenario, Trial, Verdict
from tests.origins import Source

_AT_ONCE = 250
BATCH = 1_000
"""The most rows of a micro-batch."""
_MOST_WAITING = 2_000
"""So many rows may be landed and not have come out yet: what waits at the end takes its time."""
_PATIENCE = 240.0
_LOST = re.compile(rb"TaskSetManager: .*Lost task .*ExecutorLostFailure")
_RANDOM = random.Random(20260104)
_SLOWER = re.compile(rb"Lost task .*TaskKilled \((?:another attempt succeeded|Stage cancelled: Stage finished)\)")
_SPECULATES = (
    "spark.speculation=true", "spark.speculation.quantile=0.5", "spark.speculation.multiplier=1.1",
    "spark.speculation.minTaskRuntime=100ms", "spark.speculation.interval=50ms",
)  # fmt: skip


@dataclass
class SparkTrial(Trial):
    """A trial that lands rows in a spool. A query on two executors reads them, and where there is a ``broker`` publishes them to
    a worker whose handler skips what it knows by its key."""

    case: str = ""
    settings: tuple[str, ...] = ()
    driver: subprocess.Popen[bytes] | None = None

    # -- what runs

    @contextmanager
    def running(self) -> Iterator[Trial]:
        """As of Trial; nothing that was started is left after an error, and the driver is at its end after the block."""
        try:
            with super().running():
                yield self
            self._end()
        finally:
            self._kill_all()

    def start_worker(self) -> None:
        """Returns when the first rows have come out."""
        self._spool = Spool(self.folder / "spool", "a")
        self._land()
        if self.broker:
            environ = {"CHAOS_FOLDER": str(self.folder), "PYTHONPATH": str(ROOT)}
            self.worker = Worker("run", "tests.chaos.once", "--broker", self.broker, cwd=self.folder, env=environ)
            self.worker.wait_for(" ready", deadline=90)
        self.driver = self._driver()
        self.wait(lambda: self.out() > 0, "the first rows")

    def _driver(self) -> subprocess.Popen[bytes]:
        from tests import quick_spark
        from workers.api_requests.stream.session import home_without_zip

        home = home_without_zip(self.folder)  # where the executors work in
        environ = {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"}
        environ |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), **quick_spark.ANY_JVM}
        settings = (f"broker={self.broker}", *self.settings) if self.broker else self.settings
        command = [sys.executable, "-m", "tests.chaos.spark_driver", str(self.folder), self.case, *settings]
        with (self.folder / "driver.log").open("wb") as log:
            return subprocess.Popen(command, env=environ, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)

    def _end(self) -> None:
        """Let the query do what is there."""
        assert self.driver is not None
        (self.folder / "end").touch()
        self.wait(lambda: self.driver is not None and self.driver.poll() == 0, "the query's end", ends=True)
        self._spool.close()

    def _kill_all(self) -> None:
        if self.driver is not None and self.driver.poll() is None:
            for process in psutil.Process(self.driver.pid).children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
            self.driver.kill()
            self.driver.wait()

    def wait(self, condition: Callable[[], bool], what: str, *, ends: bool = False) -> None:
        """Raises RuntimeError, with what the driver said last, when it does not come, or the driver has ended before."""
        assert self.driver is not None
        until = time.monotonic() + _PATIENCE
        while not condition():
            if time.monotonic() > until or (self.driver.poll() is not None and not (ends and condition())):
                raise RuntimeError(f"{what}: it did not come to that: {self._log()[-3000:].decode(errors='replace')}")
            time.sleep(0.05)

    def _log(self) -> bytes:
        return (self.folder / "driver.log").read_bytes()

    # -- rows

    def _land(self) -> None:
        numbers = range(self.next, self.next + _AT_ONCE)
        source = Source(topic="chaos")
        self._spool.land(Batch([Message(b"%016x" % n, 1_700_000_000_000_000_000 + n, 1, b"%d" % n, source) for n in numbers]))
        self.next = numbers.stop
        self.confirmed.update(numbers)

    def _publish(self, stop: threading.Event) -> None:
        while not stop.wait(0.1):
            if len(self.confirmed) - self.out() < _MOST_WAITING:
                self._land()

    def out(self) -> int:
        """How many rows have come out so far."""
        if self.broker:
            return len(self.handled())
        commits = self.folder / "checkpoint" / "commits"
        numbers = [int(one.name) for one in commits.iterdir() if one.name.isdigit()] if commits.exists() else []
        return BATCH * (1 + max(numbers, default=-1))  # Spark keeps the newest hundred files

    def handled(self) -> dict[int, list[int]]:
        if self.broker:
            return super().handled()
        file = self.folder / "written"
        return {int(number): [0] * times for number, times in Counter(file.read_text().split() if file.exists() else []).items()}

    def landed(self) -> set[int]:
        return self.confirmed

    def settle(self, empty: Callable[[], bool] = lambda: False, *, patience: float = 60.0) -> None:
        if self.worker is not None:
            super().settle(empty, patience=patience)

    # -- kills

    def lost_tasks(self) -> int:
        """Of executors that died."""
        return len(_LOST.findall(self._log()))

    def kill_an_executor(self, chosen: Callable[[], psutil.Process | None]) -> None:
        """Returns when Spark has said that it lost a task by it; until then one is killed again."""
        before = self.lost_tasks()
        self.wait(lambda: _killed(chosen()) and self._lost_within(before, 10), "a task that was lost with its executor")
        self.harmless += 1

    def _lost_within(self, before: int, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self.lost_tasks() == before and time.monotonic() < until:
            time.sleep(0.05)
        return self.lost_tasks() > before

    def speculated(self) -> int:
        """How many tasks were killed because another try of theirs was quicker."""
        return len(_SLOWER.findall(self._log()))

    def executor_at(self, port: int | None = None) -> psutil.Process | None:
        """One that is connected to ``port``, if that is given."""
        found = []
        for one in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline()) and (port is None or _connected(one, port)):
                    found.append(one)
        return _RANDOM.choice(found) if found else None


def _connected(executor: psutil.Process, port: int) -> bool:
    return any(
        one.raddr and one.raddr.port == port
        for python in executor.children(recursive=True)
        for one in python.net_connections("tcp")
    )


def _killed(executor: psutil.Process | None) -> bool:
    if executor is None:
        return False
    with suppress(psutil.Error):
        executor.kill()
        return True
    return False


def sinks_executor_killed(folder: Path, times: int, *, case: str, settings: tuple[str, ...] = ()) -> Verdict:
    """It is killed while it publishes, so its task publishes again; the handler must be called once for each row."""
    needs_java()
    with servers.running(servers.own_nsqd(folder / "nsqd")) as nsqd:
        url = f"nsq://{nsqd.address}?headers=true"
        trial = SparkTrial(folder, url, url, case=case, settings=settings)
        with trial.running():
            for _ in range(times):
                before = trial.out()
                trial.wait(lambda before=before: trial.out() >= before + _AT_ONCE, "rows after a kill")
                trial.between(0.0, 1.0)
                trial.kill_an_executor(lambda: _publishing(trial, nsqd))
        trial.settle()
        if _stored(nsqd) == len(trial.confirmed):
            raise RuntimeError("no row was published again: no kill found a task in the middle")
    return trial.verdict(f"Spark's executor kill -9, sink, {case}")


def speculating(folder: Path, times: int) -> Verdict:
    """Two tries of one task publish at the same time, on two hosts: Spark starts none beside another on one host."""
    needs_java()
    with _two_hosts(folder) as master, servers.running(servers.own_nsqd(folder / "nsqd")) as nsqd:
        url = f"nsq://{nsqd.address}?headers=true"
        trial = SparkTrial(folder, url, url, case="slow", settings=(f"spark.master={master}", *_SPECULATES))
        with trial.running():
            trial.wait(lambda: trial.speculated() >= times, "tasks that are overtaken")
        trial.harmless = trial.speculated()
        trial.settle()
        if _stored(nsqd) == len(trial.confirmed):
            raise RuntimeError("no row was published again: no try that was killed had published")
    return trial.verdict("Spark speculates, sink")


@contextmanager
def _two_hosts(folder: Path) -> Iterator[str]:
    """A standalone cluster whose workers have an address of loopback each; the master's URL."""
    import pyspark

    from tests import quick_spark
    from workers.api_requests.stream.session import home_without_zip

    home = home_without_zip(folder)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)}
    environ |= quick_spark.ANY_JVM
    port = servers.free_port()
    url = f"spark://127.0.0.1:{port}"
    start = [str(Path(pyspark.__file__).parent / "bin" / "spark-class")]
    ui = "--webui-port"
    commands = [["master.Master", "--host", "127.0.0.1", "--port", str(port), ui, str(servers.free_port())]]
    for host in ("127.0.0.1", "127.0.0.2"):
        place = ["--host", host, "--cores", "1", "--memory", "1g", "--work-dir", str(folder / host)]
        commands.append(["worker.Worker", *place, ui, str(servers.free_port()), url])
    started = []
    try:
        with (folder / "cluster.log").open("wb") as log:
            for name, *more in commands:
                command = [*start, f"org.apache.spark.deploy.{name}", *more]
                started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environ))
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(30)


def sources_executor_killed(folder: Path, times: int) -> Verdict:
    """It is killed while it reads; each row must be in the output once, as Spark reads it."""
    needs_java()
    trial = SparkTrial(folder, "", "", case="source")
    with trial.running():
        for _ in range(times):
            before = trial.out()
            trial.wait(lambda before=before: trial.out() > before, "a batch after a kill")
            trial.between(0.0, 0.5)
            trial.kill_an_executor(trial.executor_at)
    return trial.verdict("Spark's executor kill -9, source")


def _publishing(trial: SparkTrial, nsqd: servers.Server) -> psutil.Process | None:
    """An executor that is connected while some rows are stored."""
    executor, before, until = trial.executor_at(nsqd.tcp_port), _stored(nsqd), time.monotonic() + 5
    while executor is not None and _stored(nsqd) < before + 20 and time.monotonic() < until:
        time.sleep(0.01)
    with suppress(psutil.Error):
        return executor if executor is not None and _connected(executor, nsqd.tcp_port) else None
    return None


def _stored(nsqd: servers.Server) -> int:
    topics = nsqd.http("/stats?format=json&topic=chaos")["topics"]
    return int(topics[0]["message_count"]) if topics else 0


def needs_java() -> None:
    """Raises ServerMissing where Java or Spark is missing."""
    java.binary("Spark")
    if find_spec("pyspark") is None:
        raise ServerMissing("Spark is missing: pip install 'nsq-workers[spark]'")


ALL: dict[str, tuple[Scenario, int, int]] = {
    "spark-source": (sources_executor_killed, 20, 0),
    "spark-sink": (partial(sinks_executor_killed, case="rows"), 20, 1),
    "spark-sink-column": (partial(sinks_executor_killed, case="column"), 20, 0),
    "spark-sink-shuffle": (partial(sinks_executor_killed, case="shuffle"), 20, 0),
    "spark-sink-round-robin": (partial(sinks_executor_killed, case="round-robin"), 20, 0),
    "spark-sink-speculates": (speculating, 20, 0),
}
"""As in scenarios."""
