"""The Procfile deploys the pipeline: it starts, lines that are published come out as Parquet, and SIGTERM ends it cleanly."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from framework.testing.servers import free_port
from tests.conftest import AT_LENGTH
from workers.api_requests.detect.blocklist import BlockList
from workers.api_requests.processes import descendants, kill

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


class Deployment:
    """honcho, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        tcp, http = free_port(), free_port()
        self.folder = folder
        self.environment = {
            **os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "BROKER_URL": f"nsq://127.0.0.1:{tcp}",
            "NSQD_TCP_ADDRESS": f"127.0.0.1:{tcp}", "NSQD_HTTP_ADDRESS": f"127.0.0.1:{http}", "PYTHONUNBUFFERED": "1",
            "API_REQUESTS_EVERY": "1",
        }  # fmt: skip
        self.log = folder / "honcho.log"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [BIN / "honcho", "--no-colour", "-f", ROOT / "Procfile", "-d", self.folder, "start"],
                stdout=log, stderr=log, env=self.environment, cwd=self.folder, start_new_session=True,
            )  # fmt: skip

    def publish(self, lines: list[str]) -> None:
        said = subprocess.run(
            [BIN / "workers", "publish", "api_requests", "-"], input="\n".join(lines).encode(), env=self.environment,
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert said.returncode == 0, said.stderr

    def wait(self, what: Callable[[], Any], seconds: float = 200) -> None:
        until = time.monotonic() + seconds
        while not what():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.1)

    def says(self, words: str) -> bool:
        return words in self.log.read_text()

    def archived(self) -> list[str]:
        folder = self.folder / "var" / "api_requests" / "archive"
        table = ds.dataset(folder, format="parquet") if folder.exists() else None
        return table.to_table(["path"])["path"].to_pylist() if table is not None and table.files else []

    def stop(self) -> dict[str, int]:
        """SIGTERM; the exit code of each process."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        ends = re.findall(r"(\w+)\.1 (?:stopped|died) \(rc=(-?\d+)\)", self.log.read_text())
        return {name: int(code) for name, code in ends}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_it_runs_stops_and_goes_on(java: None, tmp_path: Path) -> None:
    deployed = Deployment(tmp_path)
    try:
        lines = [f'10.0.0.{n % 7} - - [12/May/2024:06:{n % 60:02}:00 +0000] "GET /{n} HTTP/1.1" 200 1' for n in range(200)]
        abuse = [f'66.0.0.1 - - [12/May/2024:06:00:{n:02} +0000] "GET /{n}/.env HTTP/1.1" 404 1' for n in range(9)]
        deployed.start()
        deployed.wait(lambda: deployed.says("framework.app ready") and deployed.says("job: ready"))
        deployed.publish([*lines[:100], *abuse])
        deployed.wait(lambda: len(deployed.archived()) >= 109)
        blocked = BlockList(tmp_path / "var" / "blocklist.sqlite")
        deployed.wait(lambda: [entry.address for entry in blocked.entries()] == ["66.0.0.1"])
        assert deployed.stop() == {"nsqd": 0, "workers": 0, "job": 0}
        assert not deployed.says("StackOverflow")
        if not AT_LENGTH:  # that the job goes on where it was, test_job.py shows in each run
            return
        deployed.log.write_text("")
        deployed.start()
        deployed.wait(lambda: deployed.says("framework.app ready"))
        deployed.publish(lines[100:])
        deployed.wait(lambda: len(deployed.archived()) >= 209)
        assert Counter(deployed.archived()) == Counter(f"/{n}" for n in range(200)) + Counter(f"/{n}/.env" for n in range(9))
        assert deployed.stop() == {"nsqd": 0, "workers": 0, "job": 0}
        assert not deployed.says("StackOverflow")
    finally:
        kill([*descendants(deployed.process.pid), deployed.process.pid])  # honcho's children are in groups of their own
