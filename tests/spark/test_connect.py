"""Spark Connect: the source and the sink work there as they do beside the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.testing.servers import ROOT, Server
from tests.spark.conftest import messages

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.slow, pytest.mark.long_run]
SCRIPT = Path(__file__).parent / "scripts" / "connected.py"


@pytest.mark.timeout(400)
def test_source_and_sink_work_with_spark_connect(java: None, start_nsqd: Callable[..., Server], tmp_path: Path) -> None:
    from framework.spool import Spool

    nsqd = start_nsqd()
    with Spool(tmp_path / "spool", "a") as spool:
        for first in range(0, 500, 50):
            spool.land(messages(first, first + 50))
    environ = {name: value for name, value in os.environ.items() if name != "SPARK_SUBMIT_OPTS"}
    environ |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, str(SCRIPT), str(tmp_path), nsqd.address]
        code = subprocess.run(command, env=environ, cwd=tmp_path, stdout=log, stderr=log, timeout=350, check=False).returncode
    assert code == 0, (tmp_path / "log").read_text(errors="replace")[-3000:]
    assert (tmp_path / "read").read_text() == "500 500 500"
    (topic,) = nsqd.http("/stats?format=json&topic=copy")["topics"]
    assert topic["message_count"] == 500
