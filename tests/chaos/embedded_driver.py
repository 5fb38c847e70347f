"""A Spark driver whose query consumes an nsqd itself until it is killed: ``FOLDER URL``.

When FOLDER holds a file ``end`` as it starts, it does what is there, and writes what Spark then reads of its output into
FOLDER/written, a line a row.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from framework.spark import NsqDataSource


def main(folder: Path, broker: str) -> None:
    ends = (folder / "end").exists()
    builder = SparkSession.builder.master("local[2]").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.memory", "512m").config("spark.ui.enabled", "false")
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(NsqDataSource)
    rows = session.readStream.format("nsq").option("spoolDir", str(folder / "spool")).option("broker", broker)
    rows = rows.option("topic", "chaos").option("channel", "spark").option("maxMessagesPerTrigger", 1500)
    sink = rows.option("segmentMaxMessages", 250).load().writeStream.format("parquet").option("path", str(folder / "rows"))
    trigger: dict[str, Any] = {"availableNow": True} if ends else {"processingTime": "100 milliseconds"}
    sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(**trigger).start().awaitTermination()
    if ends:
        found = session.read.parquet(str(folder / "rows")).select("value").toArrow()["value"].to_pylist()
        (folder / "written").write_bytes(b"".join(b"%b\n" % value for value in found))
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
