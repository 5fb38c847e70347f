"""What an executor needs to read a spool: pyarrow, pyspark and the reader's own modules, in a zip that Spark sends along."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from framework.spark import options
from framework.spark.reader import NsqBatchReader, NsqStreamReader
from framework.testing.servers import ROOT

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
