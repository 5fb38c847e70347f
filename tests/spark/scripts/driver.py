"""A Spark driver with an embedded collector: ``driver.py FOLDER ADDRESS run|finish``.

``run`` reads on until it is killed; ``finish`` takes what the channel holds, and ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(folder: Path, address: str, how: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = (
        spark.readStream.format("nsq")
        .option("spoolDir", str(folder / "spool"))
        .option("topic", "orders")
        .option("channel", "archive")
        .option("nsqdTcpAddresses", address)
        .option("maxMessagesPerTrigger", 1500)
        .option("segmentMaxMessages", 250)
        .load()
    )
    query = (
        rows.writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**({"availableNow": True} if how == "finish" else {"processingTime": "100 milliseconds"}))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
