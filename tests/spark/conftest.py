"""What the Spark tests share: one session, and spools filled without a broker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from framework.message import Batch, Message
from framework.spool import Spool

ROOT = Path(__file__).resolve().parents[2]


def without_java() -> str | None:
    """Why there can be no Spark here; None when there can."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if java is None:
        return "Spark needs Java 17 or newer, and there is no `java` on the PATH"
    words = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = words.split('"')[1] if '"' in words else "0"
    return None if int(version.split(".")[0]) >= 17 else f"Spark needs Java 17 or newer, and this is {version}"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local[2] session."""
    reason = without_java()
    if reason is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        # Spark looks for pyspark_nsq on sys.path itself, where an editable install is not.
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
            # A short life: half the CPU time without the second compiler (measured: 13 s in place of 26).
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


@dataclass
class Source:
    """As much of a connection as a landed message is asked for."""

    node: str = "127.0.0.1:4150"
    topic: str = "orders"
    channel: str = "archive"


def messages(first: int, last: int, body: Callable[[int], bytes] = lambda n: b"m%d" % n, **source: str) -> Batch:
    """The messages ``first`` to ``last``, as a connection would have delivered them."""
    origin = Source(**source)
    return Batch([Message(b"%016x" % n, 1_700_000_000_123_456_789 + n, 1, body(n), origin) for n in range(first, last)])


@pytest.fixture
def land(tmp_path: Path) -> Callable[..., Path]:
    """``land(0, 100, "a")``: a segment with the messages 0 to 99 of collector "a"; returns the spool's folder."""
    spools: dict[str, Spool] = {}

    def make(first: int, last: int, collector: str = "a", **more: Any) -> Path:
        folder = tmp_path / "spool"
        spool = spools.setdefault(collector, Spool(folder, collector))
        spool.land(messages(first, last, **more))
        return folder

    return make
