"""A Spark driver with executors of their own, whose query goes on until it is told to end: ``FOLDER CASE [NAME=VALUE...]``.

It reads the spool in FOLDER. CASE says what it does with the rows, the rest are settings of Spark. When FOLDER holds a file
``end``, it does what is there, and for ``source`` writes what Spark then reads of its output into FOLDER/written, a line a row.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from framework.spark import NsqDataSource
from tests.chaos.spark_faults import BATCH

PARTITIONS = 4
_SETTINGS = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.task.maxFailures": "1000",  # kills are what this is here for
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.stage.maxConsecutiveAttempts": "1000",
}


def main(folder: Path, case: str, *settings: str) -> None:
    given = dict(one.split("=", 1) for one in settings)
    broker = given.pop("broker", "")
    session = SparkSession.builder.config(map={**_SETTINGS, **given}).getOrCreate()
    session.sparkContext.setLogLevel("WARN")  # which tells each task that is lost
    session.dataSource.register(NsqDataSource)
    rows = session.readStream.format("nsq").option("spoolDir", str(folder / "spool")).option("collector", "external")
    rows = rows.option("minPartitions", PARTITIONS).option("maxMessagesPerTrigger", BATCH).load()
    query = _written(_CASES[case](rows), folder, broker)
    while not (folder / "end").exists():
        if query.awaitTermination(0.2):
            raise SystemExit("the query ended")
    query.processAllAvailable()
    query.stop()
    if not broker:
        found = session.read.parquet(str(folder / "rows")).select("value").toArrow()["value"].to_pylist()
        (folder / "written").write_bytes(b"".join(b"%b\n" % value for value in found))
    session.stop()


def _written(rows: Any, folder: Path, broker: str) -> Any:
    if broker:  # one by one, so that a kill finds tasks in the middle
        sink = rows.writeStream.format("nsq").option("broker", broker).option("topic", "chaos").option("mpubMaxMessages", 1)
    else:
        sink = rows.writeStream.format("parquet").option("path", str(folder / "rows"))
    return sink.option("checkpointLocation", str(folder / "checkpoint")).start()


def _slowly(batches: Iterator[Any]) -> Iterator[Any]:
    """The first try of one partition takes its time."""
    context = TaskContext.get()
    slow = context is not None and context.partitionId() == 1 and context.attemptNumber() == 0
    for batch in batches:
        for first in range(0, batch.num_rows, 20):
            time.sleep(0.2 if slow else 0.02)
            yield batch.slice(first, 20)


def _bit_by_bit(batches: Iterator[Any]) -> Iterator[Any]:
    """So that a kill finds tasks in the middle."""
    for batch in batches:
        for first in range(0, batch.num_rows, 50):
            time.sleep(0.01)
            yield batch.slice(first, 50)


_CASES = {
    "source": lambda rows: rows.mapInArrow(_bit_by_bit, rows.schema),
    "rows": lambda rows: rows.select("value"),
    "column": lambda rows: rows.selectExpr("value", "concat_ws('-', collector, segment, position) AS key"),
    "slow": lambda rows: rows.select("value").mapInArrow(_slowly, "value binary"),
    "shuffle": lambda rows: rows.select("value").repartition("value"),
    "round-robin": lambda rows: rows.select("value").repartition(PARTITIONS),
}


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
