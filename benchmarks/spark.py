"""What a batch of the pipeline's Spark job costs beside the history that it has behind it.

Each history is made of synthetic lines in a fresh folder and a fresh process: most addresses come a few times, one in fifty looks
for what is not there, ten of them by long lists. Then come batches of 1,000 lines, half of them from addresses that are new.
Seconds are those of the clock, CPU seconds those of the JVM and of this process; the memory is that of both. Java is needed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from workers.api_requests.collect.topics import CHANNELS

TAKEN = datetime(2024, 6, 1, tzinfo=UTC)
DAYS = 10
_AT_ONCE = 500_000  # lines of a history in one batch: no more come in one of the job either
_QUIET_PAGES, _LISTS = 2_000, 10
_LIST = "suspects' list"
"""Which is written apart from the batches, whole, and seldom enough to take a tenth of the time."""
_TIMED = (*CHANNELS, _LIST)
_AGENT = "Mozilla/5.0 (X11; Linux x86_64; rv:126.0) Gecko/20100101 Firefox/126.0"


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if options.one is not None:
        print(json.dumps(run(options.one, options.batch, options.rounds)))
        return
    print(f"{options.rounds} batches of {options.batch:,} lines on each history; medians; s of the clock (s of CPU)")
    print(f"{'history':>10} {'made in':>8}  " + "  ".join(f"{name:>14}" for name in _TIMED) + "   Java's heap  driver's Python")
    for rows in options.histories:
        command = [sys.executable, "-m", "benchmarks.spark", f"--batch={options.batch}", f"--rounds={options.rounds}"]
        said = subprocess.run([*command, f"--one={rows}"], check=True, stdout=subprocess.PIPE, text=True).stdout
        _show(rows, json.loads(said.splitlines()[-1]))


def _show(rows: int, found: Mapping[str, Any]) -> None:
    times = "  ".join(f"{found[name][0]:7.2f} ({found[name][1]:.2f})".rjust(14) for name in _TIMED)
    print(f"{rows:>10,} {found['made']:>6.0f} s  {times}   {found['heap']:>8.0f} MB  {found['python']:>12.0f} MB", flush=True)


def run(rows: int, batch: int, rounds: int) -> dict[str, Any]:
    """By channel the seconds and CPU seconds of a batch after ``rows`` lines; how long those took, and the memory in MB."""
    from workers.api_requests.stream import session as sessions
    from workers.api_requests.stream.folders import Folders, take
    from workers.api_requests.stream.output import LocalOutput
    from workers.api_requests.stream.streams import Job

    with tempfile.TemporaryDirectory() as name:
        folders = Folders(Path(name) / "spool", LocalOutput(Path(name) / "output"), Path(name) / "state")
        take(folders)
        with _started(sessions, folders.state / "scratch") as session:

            def job(follows: bool) -> Any:
                return Job(session, folders, _Nobody(), follows=follows)  # type: ignore[arg-type]

            began = time.monotonic()
            parts = [(first, min(_AT_ONCE, rows - first)) for first in range(0, rows, _AT_ONCE)]
            for stream in job(follows=False)._streams:
                for number, (first, count) in enumerate(parts):
                    stream._batch(lines(session.spark, count, first, of=rows), number)
            job(follows=True).evidence.judge()
            made = time.monotonic() - began

            def more(number: int) -> Any:
                return lines(session.spark, batch, rows + number * batch, of=rows)

            times = _batches(job(follows=True), more, rounds, len(parts))
            jvm: Any = session.spark.sparkContext._jvm
            jvm.System.gc()
            heap = jvm.Runtime.getRuntime()
            used = (heap.totalMemory() - heap.freeMemory()) / 1e6
            return {**times, "made": made, "heap": used, "python": _peak()}


def _batches(job: Any, lines_of: Callable[[int], Any], rounds: int, number: int) -> dict[str, tuple[float, float]]:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in _TIMED}
    for n in range(rounds + 1):
        rows = lines_of(n).localCheckpoint()
        for stream in job._streams:
            began = time.monotonic(), _cpu()
            stream._batch(rows, number + n)
            if n:  # the first finds nothing compiled
                found[stream.name].append((time.monotonic() - began[0], _cpu() - began[1]))
        began = time.monotonic(), _cpu()
        job.evidence.finish()
        if n:
            found[_LIST].append((time.monotonic() - began[0], _cpu() - began[1]))
    return {
        name: (statistics.median(wall for wall, _ in all_), statistics.median(cpu for _, cpu in all_))
        for name, all_ in found.items()
    }


def lines(spark: Any, count: int, first: int, *, of: int) -> Any:
    """``count`` lines from number ``first`` on as the source gives them, after or among a history of ``of`` lines."""
    from pyspark.sql import functions as f

    n = f.col("id")
    hashed = f.pmod(f.xxhash64(n), f.lit(1 << 40))
    visitor = f.when(n < of, hashed % max(of // 8, 1)).otherwise(
        f.when(n % 2 == 0, f.lit(1 << 30) + n).otherwise(hashed % max(of // 8, 1))
    )
    quiet = f.floor(f.pow(f.pmod(f.xxhash64(n, f.lit(1)), f.lit(1_000_000)) / 1e6, 3) * _QUIET_PAGES)
    word = f.pmod(f.xxhash64(n, f.lit(2)), f.lit(100_000))
    probe = f.array(*(f.lit(f"/{where}{what}") for where in ("", "old/", "blog/") for what in _WANTED))
    wanted = f.element_at(probe, (f.pmod(f.xxhash64(n, f.lit(3)), f.lit(len(_WANTED) * 3)) + 1).cast("int"))
    seeks, lists = visitor % 50 == 7, visitor < _LISTS
    path = f.when(lists, f.concat(f.lit("/w"), word, f.lit("/"))).when(seeks, wanted)
    path = f.coalesce(path, f.concat(f.lit("/page/"), quiet.cast("string"), f.when(n % 7 == 0, "/part.png").otherwise("")))
    status = f.when(lists | seeks | (n % 40 == 0), "404").otherwise("200")
    address = f.concat_ws(".", f.lit("10"), *(f.shiftright(visitor, shift) % 256 for shift in (16, 8, 0)))
    address = f.when(visitor >= 1 << 24, f.concat(f.lit("2001:db8::"), f.hex(visitor))).otherwise(address)
    since = int((TAKEN - timedelta(days=DAYS)).timestamp())
    when = f.timestamp_seconds(
        f.lit(since) + f.floor(f.least(n / of, f.lit(1.0)) * (86_400 * DAYS - 3600)) + f.greatest(n - of, f.lit(0)) / 100
    )
    line = f.format_string(
        f'%s - - [%s +0000] "GET %s HTTP/1.1" %s 512 "-" "{_AGENT}"',
        address,
        f.date_format(when, "dd/MMM/yyyy:HH:mm:ss"),
        path,
        status,
    )
    return spark.range(first, first + count).select(
        line.cast("binary").alias("value"), f.lpad(f.hex(n), 16, "0").alias("message_id"), when.alias("timestamp")
    )


_WANTED = (
    "wp-login.php", ".env", "phpmyadmin/", "admin/", "xmlrpc.php", ".git/config", "backup.zip", "solr/", "vendor/phpunit/x",
    "manager/html", "test/", "config.php", "owa/", "remote/login", "pma/index.php?lang=en",
)  # fmt: skip


class _Nobody:
    """In place of a sender: nobody is told."""

    def put(self, bodies: Mapping[str, str]) -> None:
        pass


@contextmanager
def _started(sessions: Any, scratch: Path) -> Iterator[Any]:
    session = sessions.start("benchmark", scratch, master="local[2]", log=scratch.with_name("spark.log"))
    try:
        yield session
    finally:
        session.stop()


def _cpu() -> float:
    me = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in (me, *me.children(recursive=True)))


def _peak() -> float:
    """The most that this process has had of the machine's memory, in MB."""
    said = Path("/proc/self/status").read_text()
    return int(said.split("VmHWM:")[1].split()[0]) / 1e3


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--histories", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], metavar="LINES")
    parser.add_argument("--batch", type=int, default=1_000, metavar="LINES")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
