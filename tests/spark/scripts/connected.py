"""A client of Spark Connect and its server: what of the source and the sink works there. ``connected.py FOLDER ADDRESS``.

FOLDER holds a spool. Its rows are copied to FOLDER/copy by a stream, and published to the topic ``copy`` by another one; the
number of those that a batch query reads of the spool is written to FOLDER/read, and then of the copy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pyspark_nsq import named


def main(folder: Path, address: str) -> None:
    session: Any = SparkSession.builder.remote("local[2]").getOrCreate()
    session.dataSource.register(named("nsq_orders"))
    spool = str(folder / "spool")
    batch = session.read.format("nsq").option("spoolDir", spool).load()
    stream = session.readStream.format("nsq_orders").option("spoolDir", spool).option("collector", "external").load()
    copy = stream.writeStream.format("parquet").option("path", str(folder / "copy"))
    sink = stream.select("value").writeStream.format("nsq").option("topic", "copy").option("nsqdTcpAddresses", address)
    for number, one in enumerate((copy, sink)):
        query = one.option("checkpointLocation", str(folder / f"check-{number}")).trigger(availableNow=True).start()
        assert query.awaitTermination(200)
    copied = session.read.parquet(str(folder / "copy"))
    (folder / "read").write_text(f"{batch.count()} {copied.select('message_id').distinct().count()} {copied.count()}")
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
