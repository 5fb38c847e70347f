"""What an executor needs to read a spool: pyarrow, pyspark and the reader's own modules, in a zip that Spark sends along."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructType

from framework.spark import options
from framework.spark.reader import NsqBatchReader, NsqStreamReader
from framework.spark.source import NsqDataSource
from framework.spark.writer import NsqWriter
from framework.testing.servers import ROOT

VALUE = StructType().add("value", StringType())
SCRIPT = Path(__file__).parent / "scripts" / "executor.py"


@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_rows_are_read_where_neither_gevent_nor_msgspec_can_be_imported(land: Callable[..., Path], mode: str) -> None:
    folder = land(0, 300)
    given = {"spooldir": str(folder), "minpartitions": "2"}
    if mode == "batch":
        reader = NsqBatchReader(options.batch_read(given))
        partitions = reader.partitions()
    else:
        stream = NsqStreamReader(options.stream_read({**given, "collector": "external"}))
        start = stream.initialOffset()
        partitions = stream.partitions(start, stream.latestOffset(start, stream.getDefaultReadLimit()))
        reader = stream  # type: ignore[assignment]
    executor = subprocess.run(
        [sys.executable, SCRIPT], input=pickle.dumps((reader, partitions)), capture_output=True, cwd=ROOT, check=False, timeout=60
    )
    assert (executor.returncode, executor.stderr.decode()) == (0, "")
    assert executor.stdout.decode().split() == [f"m{n}" for n in range(300)]


def test_the_source_can_be_planned_there_too() -> None:
    """Spark plans in the executors' Python, on the driver."""
    blocked = "import sys; sys.modules.update(dict.fromkeys(('gevent', 'greenlet', 'msgspec')))"
    words = "import pyspark_nsq; print(pyspark_nsq.DefaultSource({'spoolDir': '/spool'}).schema()[:12])"
    planned = subprocess.run(
        [sys.executable, "-c", f"{blocked}; {words}"], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60
    )
    assert (planned.stdout, planned.stderr) == ("value binary\n", "")


LACKING = """
import sys
sys.modules["{module}".partition(".")[0]] = None  # an import of it fails
import pickle
from pyspark import TaskContext
if {in_task}:
    TaskContext._setTaskContext(TaskContext())
try:
    pickle.load(sys.stdin.buffer).{does}
except ImportError as error:
    print(error)
"""


def of(what: str) -> tuple[Any, str, str]:
    """What Spark sends, what of it is called there, and what is missing for that."""
    given = {"spooldir": "/spool"}
    embedded = {**given, "nsqdtcpaddresses": "127.0.0.1:1", "topic": "a", "channel": "b"}
    if what == "source":
        return NsqDataSource({}), "read", "framework.spark"
    if what == "batch":
        return NsqBatchReader(options.batch_read(given)), "read", "framework.spark"
    if what == "stream":
        return NsqStreamReader(options.stream_read({**given, "collector": "external"})), "read", "framework.spark"
    if what == "collector":
        return NsqStreamReader(options.stream_read(embedded)), "latestOffset({}, None)", "gevent"
    sink = NsqWriter(options.write({"nsqdTcpAddresses": "127.0.0.1:1", "topic": "a"}), VALUE, False)
    return sink, "write(iter([]))", "msgspec"


@pytest.mark.parametrize(
    ("what", "in_task"),
    [
        ("source", False),
        ("batch", True),
        ("batch", False),
        ("stream", True),
        ("stream", False),
        ("collector", False),
        ("sink", True),
    ],
)
def test_where_a_module_is_missing_spark_is_told_which_and_what_to_send(what: str, in_task: bool) -> None:
    """As Spark sends them, which pickles more by value than pickle does."""
    sent, does, module = of(what)
    there = subprocess.run(
        [sys.executable, "-c", LACKING.format(module=module, does=does, in_task=in_task)], input=cloudpickle.dumps(sent),
        capture_output=True, cwd=ROOT, check=False, timeout=60,
    )  # fmt: skip
    assert there.stderr.decode() == ""
    said = there.stdout.decode()
    assert f"has no module {module}" in said
    assert said.startswith("the executor on" if in_task else "the Python beside the driver on")
    also = "" if in_task else " and, for a stream, in PYTHONPATH"  # no --py-files come to its source
    assert f"which format nsq needs there: send this package along by --py-files{also}, or an environment" in said
