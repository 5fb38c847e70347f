"""The pipeline's Spark session: small, quiet, and stopped by nobody but the job itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

_ROOT = Path(__file__).resolve().parents[2]

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # A trigger that comes late is no news where the machine is small.
    "spark.log.level": "ERROR",
}
_FOR_SHORT_RUNS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM's fast compiler alone: a run of a minute never gets the slow compiler's time back."""


def start(name: str, *, master: str = "local[*]", short: bool = False, log: Path | None = None) -> SparkSession:
    """A session, its JVM in a process group of its own, so that a signal to ours lets the queries end in order.

    ``log``: where the JVM's messages go, in place of stderr. The JVM ends by itself when this process does.
    Raises JavaMissing with a sentence where there is no usable Java.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Spark looks for pyspark_nsq on sys.path alone, where an editable install is not.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    settings = {**_SETTINGS, "spark.app.name": name, "spark.master": master}
    if short:
        settings["spark.driver.extraJavaOptions"] = _FOR_SHORT_RUNS
    conf = SparkConf().setAll(list(settings.items()))
    options: dict[str, object] = {"start_new_session": True}
    if log is not None:
        options |= {"stdout": log.open("ab"), "stderr": subprocess.STDOUT}
    context = SparkContext(conf=conf, gateway=launch_gateway(conf, options))  # type: ignore[no-untyped-call]
    return SparkSession(context)
