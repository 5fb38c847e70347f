"""The pipeline's Spark session: small, quiet, and stopped by nobody but the job itself."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from workers.api_requests.job.queries import Failed, words_of
from workers.api_requests.processes import descendants, kill

_DYING = 0.5  # seconds from the end of a JVM's connections to its own
_ROOT = Path(__file__).resolve().parents[3]

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
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
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
SHORT = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
"""What compiles and plans for long runs never gives its time back within a minute: 66 CPU seconds in place of 35."""


def start(name: str, scratch: Path, *, master: str = "local[*]", short: bool = False, log: Path | None = None) -> SparkSession:
    """A session, its JVM in a process group of its own, so that a signal to ours lets the queries end in order.

    ``scratch``: a folder that may stay. ``log``: where the JVM's messages go, in place of stderr. The JVM ends by itself when
    this process does. Raises PySparkException where Java is missing, and Failed where the JVM does not get as far as a session.
    """
    logging.getLogger().addFilter(is_news)
    local = master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_HOME", str(home_without_zip(scratch)))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Spark looks for pyspark_nsq on sys.path alone, where an editable install is not.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    settings = {**_SETTINGS, **(_LOCAL if local else {}), "spark.app.name": name, "spark.master": master}
    if short:
        settings |= SHORT
    conf = SparkConf().setAll(list(settings.items()))
    options: dict[str, object] = {"start_new_session": True}
    if log is not None:
        options |= {"stdout": log.open("ab"), "stderr": subprocess.STDOUT}
    try:
        gateway = launch_gateway(conf, options)  # type: ignore[no-untyped-call]
        return _session(conf, gateway)
    except BaseException:
        kill(descendants(os.getpid()))  # a JVM that is still starting does not see that we end
        raise


def _session(conf: SparkConf, gateway: Any) -> SparkSession:
    try:
        return SparkSession(SparkContext(conf=conf, gateway=gateway))
    except (Py4JError, OSError) as error:
        raise Failed(_death(gateway.proc) or words_of(error)) from None


def home_without_zip(folder: Path) -> Path:
    """A SPARK_HOME in ``folder`` whose Python workers import the installed pyspark, where Spark's own has them import a zip.

    Nothing in that zip is compiled, and every worker that starts compiles it anew: 2.0 s of CPU in place of 0.6, of the 10 s
    that Spark waits. Other machines get their workers' pyspark from the zip, so it is for local masters alone.
    """
    home = folder / "spark-home"
    home.mkdir(parents=True, exist_ok=True)
    for part in ("bin", "jars"):
        link, target = home / part, Path(find_spark_home._find_spark_home()) / part
        if not link.is_symlink() or link.readlink() != target:  # of another installation; else a JVM may be using it
            link.unlink(missing_ok=True)
            link.symlink_to(target)
    return home


def stop(spark: SparkSession) -> None:
    """End the session and its JVM; returns when the JVM has gone."""
    process = _process(spark)
    with suppress(Exception):  # the JVM may have been killed
        spark.stop()
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_news(record: logging.LogRecord) -> bool:
    """A filter of the root logger, to which py4j gives a traceback for each word to a JVM that has died."""
    return record.msg != "Exception while sending command."


def death(spark: SparkSession) -> str:
    """How the JVM ended by itself, in words; empty where it has not, within half a second."""
    return _death(_process(spark))


def _death(jvm: subprocess.Popen[bytes]) -> str:
    try:
        code = jvm.wait(_DYING)
    except subprocess.TimeoutExpired:
        return ""
    how = f"was killed by signal {-code}, as where there is too little memory" if code < 0 else f"ended with code {code}"
    return f"Spark's JVM {how}; its log may say more"


def _process(spark: SparkSession) -> subprocess.Popen[bytes]:
    gateway: Any = spark.sparkContext._gateway
    return gateway.proc  # type: ignore[no-any-return]
