"""A Spark driver with an embedded collector that reads on until it is killed: ``driver.py FOLDER ADDRESS``.

Behind these there may be the URL of its spool, and ``now``: then it does what is there, and ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def main(folder: Path, address: str, spool: str = "", until: str = "") -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    trigger: dict[str, Any] = {"availableNow": True} if until == "now" else {"processingTime": "100 milliseconds"}
    start(spark, folder, address, spool=spool, **trigger).awaitTermination()


def start(spark: SparkSession, folder: Path, address: str, *, spool: str = "", **trigger: Any) -> StreamingQuery:
    """The query, from its checkpoint. ``spool``: its URL; else it is in ``folder``."""
    rows = (
        spark.readStream.format("nsq")
        .option("spoolDir", spool or str(folder / "spool"))
        .option("topic", "orders")
        .option("channel", "archive")
        .option("nsqdTcpAddresses", address)
        .option("maxMessagesPerTrigger", 1500)
        .option("segmentMaxMessages", 250)
        .load()
    )
    return (
        rows.writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**trigger)
        .start()
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
