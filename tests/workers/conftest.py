"""What the pipeline's tests share: a Spark session, and the lines of the log that comes with the project."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOG = ROOT / "data" / "erddap_access_2024-05.log.gz"


def missing(reason: str) -> None:
    """A skip on a laptop, a failure in CI."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


@pytest.fixture(scope="session")
def java() -> None:
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        missing("Spark needs Java 17 or newer, and there is no `java` on the PATH")


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[Any]:
    """A local[2] session, the same one that other rooms' tests use where they run in this process."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("tests")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.sql.adaptive.enabled", "false")
            .config("spark.sql.codegen.wholeStage", "false")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


@pytest.fixture(scope="session")
def as_lines(spark: Any) -> Callable[[Iterable[bytes]], Any]:
    """Lines as the source ``nsq`` gives them, as far as the pipeline looks."""

    def make(lines: Iterable[bytes]) -> Any:
        rows = [(bytearray(line), f"{number:016x}") for number, line in enumerate(lines)]
        return spark.createDataFrame(rows, "value binary, message_id string")

    return make


@pytest.fixture(scope="session")
def log_lines() -> list[bytes]:
    """The 16,275 lines of the shipped log."""
    return gzip.decompress(LOG.read_bytes()).splitlines()


@pytest.fixture(scope="session")
def shipped(as_lines: Callable[[Iterable[bytes]], Any], log_lines: list[bytes]) -> Any:
    """The shipped log, parsed once."""
    from workers.api_requests.parse import parse

    return parse(as_lines(log_lines)).localCheckpoint()
