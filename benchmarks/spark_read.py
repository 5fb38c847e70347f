"""Rows of 200 bytes out of a spool into Parquet by Spark, beside Spark's own sources and beside the least that Python can do.

The cases take turns, each in every round, in one session of two cores, after a round that is not counted:

- ours: ``spark.read.format("nsq")``;
- bare: a Python data source that yields the same Arrow batches from files and does nothing else: the limit of the API;
- bare, large: the same, in one batch for each task, so that it is seen what small ones cost;
- parquet: Spark's own source over the same rows, which runs no Python;
- the last two again, with the bodies alone;
- kafka: Spark's connector and a real broker with as many rows, whose jars Maven copies into .cache at the first run; of its
  columns and of ours the value, the topic and the time are taken (``ours, 3 columns``).

Rates are of the clock, CPU is that of the JVM and of all Python processes. Java is needed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.kafka import Kafka, connector, running
from benchmarks.spark_session import cpu, started
from framework.spark.lives import list_spool
from framework.spark.offsets import Span
from framework.spark.rows import DDL, rows_of
from framework.spool import Spool, arrow
from framework.spool.segment import Segment

BODY = 200
SEGMENT = 2_500
MOST = 250_000
"""Rows of a task, as ``maxRecordsPerPartition`` is by default: all cases write as many files."""
BRIEF = "value binary, topic string, timestamp timestamp"


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spool = fill(folder / "spool", options.rows)
        alone(spool, options.rows)
        with ExitStack() as stack:
            broker = stack.enter_context(running(Kafka(folder / "kafka"))) if options.kafka else None
            session = stack.enter_context(started(folder, connector() if options.kafka else ()))
            measured(session, folder, spool, options, broker)


def measured(session: Any, folder: Path, spool: Path, options: argparse.Namespace, broker: Kafka | None) -> None:
    cases = _cases(session, folder, spool, broker)
    sinks = {"to Parquet": lambda rows: rows.write.mode("overwrite").parquet(str(folder / "out")), "to nowhere": _nowhere}
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(options.rounds + 1):
        for sink, write in sinks.items():
            for case, read in cases.items():
                wall, used = time.monotonic(), cpu()
                write(read())
                if number:
                    found.setdefault((sink, case), []).append((time.monotonic() - wall, cpu() - used))
    print(f"{options.rows:,} rows of {BODY} B, medians of {options.rounds} rounds, load {os.getloadavg()[0]:.0f}")
    for sink in sinks:
        print(f"{sink:<18} k rows/s   CPU s   ours / it by the clock   by CPU")
        for case in cases:
            ours = "ours, 3 columns" if case == "kafka" else "ours"
            both = list(zip(found[sink, ours], found[sink, case], strict=True))
            ratio = [statistics.median(it[i] / our[i] for our, it in both) for i in (0, 1)]
            seconds, used = (statistics.median(one[i] for one in found[sink, case]) for i in (0, 1))
            shown = "" if case.startswith("ours") else f"{ratio[0]:22.2f} {ratio[1]:8.2f}"
            print(f"  {case:<16} {options.rows / seconds / 1000:8.0f} {used:7.2f} {shown}", flush=True)


def _cases(session: Any, folder: Path, spool: Path, broker: Kafka | None) -> dict[str, Callable[[], Any]]:
    session.dataSource.register(Bare)

    def ours() -> Any:
        return session.read.format("nsq").option("spoolDir", str(spool)).load()

    batches = folder / "batches"
    batches.mkdir()
    for name, segments in list_spool(spool).items():
        for one in segments:
            _write(batches / f"{one.number}.arrow", rows_of(Span(name, one, 0, one.rows)))
    ours().write.parquet(str(folder / "rows"))
    cases = {
        "ours": ours,
        "bare": lambda: session.read.format("bare").option("folder", str(batches)).load(),
        "bare, large": lambda: session.read.format("bare").option("folder", str(batches)).option("large", "true").load(),
        "parquet": lambda: session.read.parquet(str(folder / "rows")),
        "bare, bodies": lambda: session.read.format("bare").option("folder", str(batches)).schema("value binary").load(),
        "parquet, bodies": lambda: session.read.parquet(str(folder / "rows")).select("value"),
    }
    if broker is None:
        return cases

    def kafka() -> Any:
        return session.read.format("kafka").option("kafka.bootstrap.servers", broker.address).option("subscribe", "rows").load()

    sent = ours().select("value").write.format("kafka").option("kafka.bootstrap.servers", broker.address)
    sent.option("topic", "rows").save()
    return {
        **cases,
        "ours, 3 columns": lambda: session.read.format("nsq").option("spoolDir", str(spool)).schema(BRIEF).load(),
        "kafka": lambda: kafka().select("value", "topic", "timestamp"),
    }


# -- what is read


def fill(folder: Path, rows: int) -> Path:
    """A spool of so many rows, as a collector would have landed them."""
    with Spool(folder, "bench", remember=0):
        pass
    for number in range(1, -(-rows // SEGMENT) + 1):
        first = (number - 1) * SEGMENT
        count = min(SEGMENT, rows - first)
        body = b"x" * (BODY - 16)
        columns = [
            [b"%016d%b" % (first + n, body) for n in range(count)],
            [f"{first + n:016x}" for n in range(count)],
            [1_700_000_000_123_456_789 + 1000 * (first + n) for n in range(count)],
            [1] * count,
            ["orders"] * count,
            ["127.0.0.1:4150"] * count,
        ]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, arrow.SCHEMA, strict=True)]
        _write(folder / "bench" / f"{number:020d}-{count}.arrow", [pa.RecordBatch.from_arrays(arrays, schema=arrow.SCHEMA)])
    return folder


def alone(spool: Path, rows: int) -> None:
    """What the reader takes without Spark: of the CPU of ours, its own part."""
    began = time.process_time()
    spans = [_whole(name, one) for name, segments in list_spool(spool).items() for one in segments]
    assert sum(batch.num_rows for span in spans for batch in rows_of(span)) == rows
    print(f"the reader alone, in one process: {time.process_time() - began:.2f} s of CPU for {rows:,} rows")


def _whole(name: str, one: Segment) -> Span:
    return Span(name, one, 0, one.rows)


def _write(path: Path, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.ipc.new_file(path, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


class Bare(DataSource):
    """Arrow files to Spark, as they are."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: Any) -> DataSourceReader:
        return BareReader(self.options["folder"], schema.fieldNames(), large="large" in self.options)


class Files(InputPartition):
    def __init__(self, paths: list[str]) -> None:
        self.paths = paths


class BareReader(DataSourceReader):
    def __init__(self, folder: str, names: list[str], *, large: bool) -> None:
        self._folder, self._names, self._large = folder, names, large

    def partitions(self) -> list[InputPartition]:
        paths = sorted(map(str, Path(self._folder).iterdir()), key=lambda path: int(Path(path).stem))
        parts = max(2, -(-len(paths) * SEGMENT // MOST))
        each = -(-len(paths) // parts)
        return [Files(paths[first : first + each]) for first in range(0, len(paths), each)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        tables = (pa.ipc.open_file(pa.memory_map(path)).read_all().select(self._names) for path in partition.paths)
        for table in [pa.concat_tables(tables).combine_chunks()] if self._large else tables:
            yield from table.to_batches()


def _nowhere(rows: Any) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_read", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kafka", action="store_true", help="beside Spark's Kafka connector as well")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
