"""A short run of all that the tests do with Spark, so that its JVM knows at its end which classes they need."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from framework import Batch, Message, Spool
from tests.origins import Source
from workers.api_requests.detect.growth.counts import Growth
from workers.api_requests.detect.kept import Kept
from workers.api_requests.detect.spam.evidence import Evidence
from workers.api_requests.stream import parse, session
from workers.api_requests.stream.archive import archive
from workers.api_requests.stream.output import LocalOutput
from workers.api_requests.stream.store import Store

TAKEN = datetime(2024, 6, 1, tzinfo=UTC)
PATHS = [*(f"/{n}" for n in range(40)), *(f"/{n}/.env" for n in range(40))]


def main(folder: Path) -> None:
    training = session.start("training", folder / "scratch", master="local[2]", short=True)
    spark = training.spark
    lines = [f'10.0.0.1 - - [12/May/2024:06:07:08 +0000] "GET {path} HTTP/1.1" 404 1'.encode() for path in PATHS]
    source, taken = Source(topic="api_requests"), int(TAKEN.timestamp() * 1e9)
    rows = [Message(b"%016x" % n, taken, 1, line, source) for n, line in enumerate([*lines, b"bad"])]
    with Spool(folder / "spool") as spool:
        spool.land(Batch(rows))
    _stream(training, folder)
    _collect(spark, lines)
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait(200)  # it writes the archive


def _stream(training: session.Session, folder: Path) -> None:
    def process(rows: DataFrame, batch: int) -> None:
        output = LocalOutput(folder)
        archive(rows, batch, archived=Store(output, "archive", by="date"), rejected=Store(output, "rejected"))
        parsed = parse.parse(rows).persist()
        growth = Growth(Kept(folder / "hours"), folder / "g.sqlite", output)
        growth.count(parse.requests(parsed), batch)
        evidence = Evidence(training.fitted, Kept(folder / "evidence"), folder / "s.sqlite", output, lambda _: None)
        evidence.collect(parse.requests(parsed), batch)
        evidence.judge()

    spark = training.spark
    lines = spark.readStream.format("nsq").option("spoolDir", str(folder / "spool")).option("collector", "external").load()
    for name, writer in (("batches", lines.writeStream.foreachBatch(process)), ("files", lines.writeStream.format("parquet"))):
        placed = writer.option("checkpointLocation", str(folder / f"{name}-check")).option("path", str(folder / name))
        placed.trigger(availableNow=True).start().awaitTermination()
    spark.read.parquet(str(folder / "files")).count()


def _collect(spark: SparkSession, lines: list[bytes]) -> None:
    rows = spark.createDataFrame(
        [(bytearray(line), "1", TAKEN) for line in lines], "value binary, id string, timestamp timestamp"
    )
    parsed = parse.parse(rows).localCheckpoint()
    parsed.groupBy("status").agg(f.count(f.lit(1)), f.collect_set("path")).orderBy("status").collect()
    parsed.toArrow()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
