"""A message that kills its worker uses up its attempts as any other, and is not run again; on a real nsqd."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.testing.servers import Server
from framework.testing.workers import Worker, call

pytestmark = [pytest.mark.real, pytest.mark.slow]

MODULE = """
import os, signal
from framework import Message, handler

@handler("orders", "billing", max_attempts=3, concurrency=1, max_in_flight=1)
def bill(message: Message) -> None:
    with open("journal", "a") as journal:
        journal.write(f"{message.body.decode()} {message.attempts}\\n")
    if message.body == b"poison":
        DIE
"""


@pytest.mark.parametrize("end", ["os._exit(7)", "os.kill(os.getpid(), signal.SIGSEGV)"])
def test_a_message_that_kills_its_process_ends_as_a_dead_letter(
    end: str, start_nsqd: Callable[..., Server], tmp_path: Path
) -> None:
    nsqd = start_nsqd("--msg-timeout=1s")
    broker = f"nsq://{nsqd.address}?http_port={nsqd.http_port}"
    (tmp_path / "shop.py").write_text(MODULE.replace("DIE", end))
    nsqd.http("/pub?topic=orders", b"poison")
    deaths, deadline = 0, time.monotonic() + 90
    while not nsqd.http("/stats?format=json&topic=orders.billing.dead")["topics"]:
        assert time.monotonic() < deadline
        worker = Worker("run", "shop", "--broker", broker, cwd=tmp_path)
        while worker.process.poll() is None and not nsqd.http("/stats?format=json&topic=orders.billing.dead")["topics"]:
            time.sleep(0.02)
        deaths += worker.process.poll() not in (None, 0)
    try:
        nsqd.http("/pub?topic=orders", b"good")
        journal = tmp_path / "journal"
        worker.wait_until(lambda: "good 1" in journal.read_text())
        assert worker.stop() == 0
    finally:
        worker.process.kill()
    assert deaths == 3
    assert journal.read_text().splitlines() == ["poison 1", "poison 2", "poison 3", "good 1"]
    [line] = call("dead", "list", "orders/billing", "--json", "--broker", broker, cwd=tmp_path).stdout.splitlines()
    letter = json.loads(line)
    assert letter["body"] == "poison"
    assert letter["attempts"] == 4
    assert letter["reason"].startswith("no answer from the last of max_attempts=3 attempts: its worker was killed, ")
