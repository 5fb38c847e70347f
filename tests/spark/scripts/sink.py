"""A Spark driver that runs code that writes: ``sink.py CODE``, with many tries for each task."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(code: Path) -> None:
    spark = (
        SparkSession.builder.master("local[2,100]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    exec(compile(code.read_text(), str(code), "exec"), {"spark": spark})
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
