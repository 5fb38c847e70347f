"""Rows of 200 bytes into Parquet by one executor of Spark, and by two: out of a spool, and beside it out of Kafka.

The same job and sink for both: the value, the topic and the time of each row, in as many tasks, on executors that are processes
of their own (``local-cluster``) and are pinned to a core each, with the Python that they start: else one executor of ours has
both cores. A pass is a session with one executor and then one with two; in each, after a round that is not counted, the sources
take turns. The driver and Kafka's broker run where there is room. The broker's jars are copied by Maven into .cache at the first
run. Java is needed, and two cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.kafka import Kafka, connector, running
from benchmarks.spark_read import BODY, BRIEF, fill
from benchmarks.spark_session import started

TASKS = 8


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    found: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        spool = fill(folder / "spool", options.rows)
        broker = stack.enter_context(running(Kafka(folder / "kafka"))) if options.kafka else None
        for number in range(options.passes):
            for executors in (1, 2):
                with started(folder, connector() if broker else (), master=f"local-cluster[{executors},1,1024]") as session:
                    _pinned(executors)
                    cases = _cases(session, spool, broker, options.rows, first=not number and executors == 1)
                    for source, seconds in _measured(cases, folder / "out", options.rounds):
                        found.setdefault((source, executors), []).append(seconds)
    rounds = options.passes * options.rounds
    print(f"{options.rows:,} rows of {BODY} B to Parquet, medians of {rounds} rounds, load {os.getloadavg()[0]:.0f}")
    print(f"{'':<8} k rows/s by 1   by 2   2 / 1")
    for source in dict.fromkeys(source for source, _ in found):
        rates = [options.rows / statistics.median(found[source, executors]) / 1000 for executors in (1, 2)]
        print(f"{source:<8} {rates[0]:15.0f} {rates[1]:6.0f} {rates[1] / rates[0]:7.2f}", flush=True)


def _pinned(executors: int) -> None:
    """Each executor to a core of its own."""
    deadline = time.monotonic() + 60
    while len(found := _executors()) < executors:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(found)} of {executors} executors within 60 s")
        time.sleep(0.2)
    for core, executor in zip(sorted(os.sched_getaffinity(0)), found, strict=False):
        for process in (executor, *executor.children(recursive=True)):
            for thread in process.threads():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, {core})


def _executors() -> list[psutil.Process]:
    name = "CoarseGrainedExecutorBackend"
    return [one for one in psutil.Process().children(recursive=True) if any(word.endswith(name) for word in one.cmdline())]


def _measured(cases: dict[str, Callable[[], Any]], out: Path, rounds: int) -> list[tuple[str, float]]:
    found = []
    for number in range(rounds + 1):
        turn = list(cases) if number % 2 else list(cases)[::-1]
        for source in turn:
            began = time.monotonic()
            cases[source]().write.mode("overwrite").parquet(str(out))
            if number:
                found.append((source, time.monotonic() - began))
    return found


def _cases(session: Any, spool: Path, broker: Kafka | None, rows: int, *, first: bool) -> dict[str, Callable[[], Any]]:
    def ours() -> Any:
        read = session.read.format("nsq").option("spoolDir", str(spool)).schema(BRIEF)
        return read.option("minPartitions", TASKS).option("maxRecordsPerPartition", -(-rows // TASKS)).load()

    if broker is None:
        return {"ours": ours}
    address = broker.address

    def kafka() -> Any:
        read = session.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", "rows")
        return read.option("minPartitions", TASKS).load().select("value", "topic", "timestamp")

    if first:
        sent = ours().select("value").write.format("kafka").option("kafka.bootstrap.servers", address)
        sent.option("topic", "rows").save()
    return {"ours": ours, "kafka": kafka}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_scale", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="in each session")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--kafka", action="store_true", help="beside Spark's Kafka connector as well")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
