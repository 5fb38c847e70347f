"""A session of Spark for benchmarks, and the CPU that it takes with all of its processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from framework.testing.servers import ROOT

_SERVERS = ("nsqd", "kafka.Kafka")
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
}


@contextmanager
def started(folder: Path, jars: Sequence[Path] = (), master: str = "local[2]") -> Iterator[Any]:
    """Of two cores; what it spills goes into ``folder``, and what executors work in."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    if master.startswith("local-cluster"):  # else they work in the folder of the installed pyspark, and leave it full
        from workers.api_requests.stream.session import home_without_zip

        os.environ["SPARK_HOME"] = str(home_without_zip(folder))
        os.environ["PYTHONPATH"] = str(ROOT)
    settings = {**_SETTINGS, "spark.local.dir": str(folder / "scratch")}
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    session = SparkSession.builder.master(master).appName("benchmark").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
        if master.startswith("local-cluster"):
            del os.environ["SPARK_HOME"]  # the next one would be made of this one's links


def cpu() -> float:
    """Seconds that this process and its children have taken, servers apart."""
    me = psutil.Process()
    total = 0.0
    for one in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):
            if not any(word.endswith(_SERVERS) for word in one.cmdline()):
                total += sum(one.cpu_times()[:2])
    return total
