"""The whole Spark job of the pipeline over many times the shipped log: lines a second, CPU, and the memory of its driver.

The log is landed in a spool as often as said, each time from other addresses, and the spool is copied for the other two channels;
then the job runs in a process of its own until it has done everything. A line counts once, although each channel has it. CPU is
that of the job and of all below it; the memory is the most that its Python and its JVM have had. Java is needed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from framework import Batch, Message, Spool
from workers.api_requests.collect.topics import CHANNELS, TOPIC

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / "data" / "erddap_access_2024-05.log.gz"
TAKEN = 1_717_200_000_000_000_000
"""When the queue took the first line, ns: in June 2024."""
_SEGMENT = 2_500  # lines, as the handlers land them
_LOOK = 0.2  # seconds


@dataclass
class _Source:
    node: str = "127.0.0.1:4150"
    topic: str = TOPIC
    lasting_ids: bool = False


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        lines = land(folder / "spool", options.log, options.times)
        print(f"{lines:,} lines in {len(CHANNELS)} spools; load {os.getloadavg()[0]:.1f}", flush=True)
        found = run(folder, lines, options.options)
        print(f"{found['starting']:.1f} s to start; {found['seconds']:.1f} s, {lines / found['seconds']:,.0f} lines/s")
        print(f"CPU {found['cpu']:.0f} s, {1e6 * found['cpu'] / lines:.0f} us a line")
        print(f"most memory: Python {found['python']:,.0f} MB, JVM {found['jvm']:,.0f} MB; load {os.getloadavg()[0]:.1f}")
        print(f"{found['suspects']:,} suspects; done: {found['done']}")


def land(spool: Path, log: Path, times: int) -> int:
    """The log ``times`` over in the spools of all channels; how many lines that is."""
    source = _Source()
    count = 0
    with Spool(spool / CHANNELS[0]) as first:
        lines = _lines(log, times)
        while some := list(islice(lines, _SEGMENT)):
            numbers = range(count, count + len(some))
            messages = (Message(b"%016x" % n, TAKEN + n * 50_000, 1, line, source) for n, line in zip(numbers, some, strict=True))
            first.land(Batch(list(messages)))
            count += len(some)
    for channel in CHANNELS[1:]:
        shutil.copytree(spool / CHANNELS[0], spool / channel)
    return count


def _lines(log: Path, times: int) -> Iterator[bytes]:
    """Each time from other addresses: ``2001:db8:<time>::`` before those of the log."""
    lines = gzip.decompress(log.read_bytes()).splitlines()
    for n in range(times):
        yield from (b"2001:db8:%x::%b" % (n, line) if line[:1].isdigit() and n else line for line in lines)


def run(folder: Path, lines: int, more: Sequence[str]) -> dict[str, Any]:
    """Runs the job to its end; seconds, CPU seconds and the most memory, in MB."""
    command = [
        sys.executable,
        "-m",
        "workers.api_requests.stream",
        "--broker=nsq://127.0.0.1:9",
        f"--log={folder}/spark.log",
        "--events",
    ]
    command += [f"--spool={folder}/spool", f"--output={folder}/output", f"--state={folder}/state", *more]
    began = time.monotonic()
    job = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    memory = _Memory(job.pid)
    ready, ended, told = began, began, {}
    assert job.stdout is not None
    for line in job.stdout:
        event = json.loads(line)
        if event["event"] == "lines":
            told = event["done"]
            if sum(told.get(CHANNELS[0], {}).values()) and all(sum(told[name].values()) >= lines for name in CHANNELS):
                ended = time.monotonic()
        if event["event"] == "ready":
            ready = time.monotonic()
    _, _, usage = os.wait4(job.pid, 0)
    job.returncode = 0
    return {
        "seconds": ended - ready, "starting": ready - began, "cpu": usage.ru_utime + usage.ru_stime, "done": told,
        "suspects": _suspects(folder / "output"), **memory.most(),
    }  # fmt: skip


def _suspects(output: Path) -> int:
    from workers.api_requests.detect.spam import suspects

    return len(suspects.read(output / "spam" / "suspects.parquet"))


class _Memory:
    """Looks, from time to time, how much memory a process and the JVM below it have."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._most = {"python": 0.0, "jvm": 0.0}
        threading.Thread(target=self._look, daemon=True).start()

    def most(self) -> Mapping[str, float]:
        return self._most

    def _look(self) -> None:
        try:
            while self._process.is_running():
                self._note("python", self._process)
                for child in self._process.children():
                    if child.name() == "java":
                        self._note("jvm", child)
                time.sleep(_LOOK)
        except psutil.Error:
            return

    def _note(self, name: str, process: psutil.Process) -> None:
        self._most[name] = max(self._most[name], process.memory_info().rss / 1e6)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.job", description=__doc__)
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="Where to work; the system's temporary folder.")
    parser.add_argument("options", nargs="*", default=["--available-now", "--master=local[2]"], help="Of the job, after --.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
