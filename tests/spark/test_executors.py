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
try:
    pickle.load(sys.stdin.buffer).{does}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("what", ["source", "batch", "stream", "sink"])
def test_an_executor_that_lacks_a_module_says_which_and_what_to_send(what: str) -> None:
    """As Spark sends them, which pickles more by value than pickle does."""
    sent: Any
    given = {"spooldir": "/spool"}
    module, does = "framework.spark", "read"
    if what == "source":
        sent = NsqDataSource({})
    elif what == "batch":
        sent = NsqBatchReader(options.batch_read(given))
    elif what == "stream":
        sent = NsqStreamReader(options.stream_read({**given, "collector": "external"}))
    else:
        module, does = "msgspec", "write(iter([]))"
        sent = NsqWriter(options.write({"nsqdTcpAddresses": "127.0.0.1:1", "topic": "a"}), VALUE, False)
    executor = subprocess.run(
        [sys.executable, "-c", LACKING.format(module=module, does=does)], input=cloudpickle.dumps(sent), capture_output=True,
        cwd=ROOT, check=False, timeout=60,
    )  # fmt: skip
    assert executor.stderr.decode() == ""
    said = executor.stdout.decode()
    assert f"has no module {module}" in said
    assert "which format nsq needs there: send this package along by --py-files, or an environment" in said
