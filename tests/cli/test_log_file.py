"""``--log-file``: all that would be on stderr is in the file, which SIGUSR1 opens again."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from framework.testing.servers import Server
from framework.testing.workers import Worker
from tests.cli.shop import put
from tests.disks import tmpfs

SHOP = """
import os, sys
from framework import handler

@handler("orders", "billing")
def bill(body: bytes) -> None: ...

os.write(2, b"what native code says\\n")
"""

NATIVE = """
import os
from framework import handler

@handler("orders", "billing", slots="process", concurrency=1)
def bill(text: str) -> None:
    os.write(2, f"native {text}\\n".encode())
"""
TALKATIVE = """
import logging
from framework import handler

@handler("orders", "billing")
def bill(text: str) -> None:
    for number in range(5):
        logging.info("said %s %d %s.", text, number, "x" * 700)
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


@pytest.mark.real
def test_what_slot_processes_write_themselves_is_in_the_new_file_too(nsqd: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(NATIVE)
    log, old = tmp_path / "worker.log", tmp_path / "old.log"
    worker = Worker("run", "shop", "--broker", f"nsq://{nsqd.address}", "--log-file", "worker.log", cwd=tmp_path)
    try:
        put(nsqd, "1")
        worker.wait_until(lambda: log.exists() and "native 1\n" in log.read_text(), deadline=40)
        log.rename(old)
        worker.signal(signal.SIGUSR1)
        worker.wait_until(lambda: log.exists() and "is opened again" in log.read_text())
        put(nsqd, "2")
        worker.wait_until(lambda: "native 2\n" in log.read_text() or "native 2\n" in old.read_text())
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        worker.process.kill()
    assert "native 2\n" in log.read_text()
    assert "native 2\n" not in old.read_text()


def all_finished(nsqd: Server, count: int) -> bool:
    stats = nsqd.channel_stats("orders", "billing")
    return (stats["message_count"], stats["depth"], stats["in_flight_count"]) == (count, 0, 0)


@pytest.mark.real
@pytest.mark.slow
def test_a_full_disk_holds_no_message_up_and_takes_no_line(nsqd: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TALKATIVE)
    with tmpfs(tmp_path / "small", 4 << 20):
        log, ballast = tmp_path / "small" / "worker.log", tmp_path / "small" / "ballast"
        broker = ("--broker", f"nsq://{nsqd.address}")
        worker = Worker("run", "shop", *broker, "--processes", "2", "--log-file", str(log), cwd=tmp_path)
        try:
            worker.wait_until(lambda: log.exists() and "processes are ready" in log.read_text(), deadline=40)
            ballast.write_bytes(bytes((4 << 20) - (64 << 10)))
            put(nsqd, *map(str, range(200)))  # 700 KB of lines
            worker.wait_until(lambda: all_finished(nsqd, 200), deadline=40)
            ballast.unlink()
            worker.wait_until(lambda: log.read_text().count("said ") == 1000, deadline=40)
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
        finally:
            worker.process.kill()
        lines = log.read_text().splitlines()
    said = Counter(match[1] for line in lines if (match := re.search(r"said (\d+ \d) x{700}\.$", line)))
    assert said == {f"{text} {number}": 1 for text in range(200) for number in range(5)}
    assert all(re.match(r"\d{4}-\d\d-\d\dT", line) for line in lines), [line for line in lines if line[:2] != "20"][:3]
    told = [line for line in lines if "the log could not be written for" in line]
    assert 1 <= len(told) <= 3, told  # once by each process that wrote meanwhile
    assert all("No space left on device" in line for line in told)
