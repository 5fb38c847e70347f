"""kill -9 of a collector at each point between receiving a batch and finishing it: nothing lost, nothing twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.spool import segment
from framework.testing.servers import Server

pytestmark = pytest.mark.real
SCRIPT = Path(__file__).parent / "scripts" / "dying_collector.py"
_LOOKS = 6
"""In a row: a message on its way from nsqd's queue to a client is in none of its counts (seen: 2 of 16,000 looks)."""


@pytest.mark.parametrize("point", ["written", "claimed", "named", "durable"])
def test_a_killed_collector_loses_nothing_and_doubles_nothing(
    start_nsqd: Callable[..., Server], tmp_path: Path, point: str
) -> None:
    nsqd = start_nsqd("--msg-timeout=2s")
    sent = Counter(b"m%d" % n for n in range(10_000))
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http("/channel/create?topic=orders&channel=archive", b"")
    nsqd.http("/mpub?topic=orders", b"\n".join(sent))
    command = [sys.executable, str(SCRIPT), str(tmp_path / "spool"), f"nsq://{nsqd.address}"]

    assert subprocess.run([*command, point], timeout=30, check=False).returncode == -signal.SIGKILL
    *before, last = map(int, (tmp_path / "batches").read_text().split())
    assert sum(landed(tmp_path).values()) == sum(before) + (last if point in ("named", "durable") else 0)

    second = subprocess.Popen([*command, "never"])
    try:
        wait_until_empty(nsqd, second)
        second.send_signal(signal.SIGTERM)
        assert second.wait(20) == 0
    finally:
        second.kill()
        second.wait()
    assert landed(tmp_path) == sent
    assert nsqd.channel_stats("orders", "archive")["timeout_count"] >= last, "the batch did come again"


def landed(tmp_path: Path) -> Counter[bytes]:
    segments = segment.listing(tmp_path / "spool" / "worker")
    return Counter(body for one in segments for body in segment.read(one.path)["value"].to_pylist())


def wait_until_empty(nsqd: Server, worker: subprocess.Popen[bytes]) -> None:
    until, looks = time.monotonic() + 40, 0
    while looks < _LOOKS:
        channel = nsqd.channel_stats("orders", "archive")
        looks = looks + 1 if channel["depth"] == channel["in_flight_count"] == channel["deferred_count"] == 0 else 0
        assert worker.poll() is None
        assert time.monotonic() < until, channel
        time.sleep(0.05)
