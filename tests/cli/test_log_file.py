"""``--log-file``: all that would be on stderr is in the file, which SIGUSR1 opens again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from framework.testing.servers import Server
from framework.testing.workers import Worker

SHOP = """
import os, sys
from framework import handler

@handler("orders", "billing")
def bill(body: bytes) -> None: ...

os.write(2, b"what native code says\\n")
"""


@pytest.mark.real
def test_the_log_is_in_a_file_and_is_opened_again_there(nsqd: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    log, old = tmp_path / "worker.log", tmp_path / "old.log"
    worker = Worker("run", "shop", "--broker", f"nsq://{nsqd.address}", "--log-file", "worker.log", cwd=tmp_path)
    try:
        worker.wait_until(lambda: log.exists() and "ready" in log.read_text())
        log.rename(old)
        worker.signal(signal.SIGUSR1)
        worker.wait_until(lambda: log.exists() and "is opened again" in log.read_text())
        log.rename(tmp_path / "newer.log")
        log.mkdir()
        worker.signal(signal.SIGUSR1)
        worker.wait_until(lambda: "stays where it was" in (tmp_path / "newer.log").read_text())
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        worker.process.kill()
    assert "what native code says\n" in old.read_text()
    assert "ledger orders/billing" in (tmp_path / "newer.log").read_text()
    assert worker.err == []


def test_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "worker.log")
    worker = Worker("run", "nothing", "--log-file", "worker.log", cwd=tmp_path)
    assert worker.wait() == 2
    assert [line for line in worker.err if "worker.log: No such device or address: give a file that may be written" in line]


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    worker = Worker("run", "nothing", "--log-file", "gone/worker.log", cwd=tmp_path)
    assert worker.wait() == 2
    assert [line for line in worker.err if "gone/worker.log: No such file or directory: give a file that may be" in line]
    assert "Traceback" not in "".join(worker.err)
