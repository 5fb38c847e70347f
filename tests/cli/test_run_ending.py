"""The process ends in time although the app would hold it up: its exit functions, and threads that nobody told to end."""

from __future__ import annotations

import json
import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framework.testing.servers import Server
from framework.testing.workers import working

pytestmark = pytest.mark.real

DRAIN = 2.0
LATE = 6.0  # seconds that a busy machine may add
SHOP = """
    import atexit, threading, time
    from framework import handler
    from gevent import monkey

    def asleep():
        print("at the end", flush=True)
        time.sleep(600)

    def asleep_in_c():
        print("at the end", flush=True)
        monkey.get_original("time", "sleep")(600)

    @handler("orders", "bill", concurrency=2, timeout=60)
    def bill(text: str) -> None:
        print("started", text, flush=True)
        if text == "short":
            time.sleep(0.2)
        else:
            time.sleep(60)

    HANG
"""
HANGS = {
    "exit function": "atexit.register(asleep)",
    "exit function in C": "atexit.register(asleep_in_c)",
    "thread": "threading.Thread(target=asleep).start()",
}
NOTHING = {"nothing": "atexit.register(print, 'by itself', flush=True)"}


@pytest.fixture
def hanging(nsqd: Server, tmp_path: Path) -> Callable[..., Any]:
    """``hanging("thread", "long")``: a worker that has begun a message, and that will hang like this at its end."""

    def start(how: str, message: str) -> Any:
        (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP).replace("HANG", (HANGS | NOTHING)[how]))
        nsqd.http("/pub?topic=orders", message.encode())
        arguments = ("run", "shop", "--broker", f"nsq://{nsqd.address}", "--drain", str(DRAIN), "--ledger", "ledger")
        return working(*arguments, cwd=tmp_path, ready=f"started {message}")

    return start


@pytest.mark.parametrize("how", HANGS)
def test_what_hangs_at_the_end_is_ended_with_the_time_to_drain_and_all_is_written_by_then(hanging, nsqd, tmp_path, how):
    with hanging(how, "short") as worker:
        worker.signal(signal.SIGTERM)
        began = time.monotonic()
        assert worker.process.wait(DRAIN + LATE) == 0
        assert time.monotonic() - began > DRAIN, "until then it may end by itself"
        worker.wait()
    assert "at the end" in worker.out
    assert any("exit functions or threads of the app still run, so" in line for line in worker.err)
    stats = nsqd.channel_stats("orders", "bill")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (0, 0, 0)
    assert json.loads((tmp_path / "ledger").read_text())["orders/bill"]["finished"] == 1


def test_what_still_runs_is_given_back_first_and_a_grace_is_left(hanging, nsqd):
    with hanging("exit function", "long") as worker:
        worker.signal(signal.SIGTERM)
        assert worker.process.wait(DRAIN + LATE) == 0
        worker.wait()
    stats = nsqd.channel_stats("orders", "bill")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (1, 0, 1)
    assert "at the end" in worker.out


def test_a_second_signal_leaves_it_the_grace_only_and_says_so_by_its_code(hanging):
    with hanging("thread", "long") as worker:
        worker.signal(signal.SIGTERM)
        worker.wait_until(lambda: any("stopping" in line for line in worker.err))
        worker.signal(signal.SIGTERM)
        assert worker.process.wait(1 + LATE) == 143


def test_who_ends_by_itself_is_not_ended(hanging):
    with hanging("nothing", "short") as worker:
        worker.signal(signal.SIGTERM)
        began = time.monotonic()
        assert worker.process.wait(DRAIN + LATE) == 0
        worker.wait()
    assert "by itself" in worker.out
    assert not any("still run" in line for line in worker.err)
    assert time.monotonic() - began < DRAIN + LATE
