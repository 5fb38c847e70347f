"""A stop while a handler blocks the hub: nothing new comes, what has not started is given back, and the process ends in time."""

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
from framework.testing.workers import Worker, working

pytestmark = pytest.mark.real

SHOP = """
    import hashlib, time
    from framework import Batch, handler
    from gevent import monkey

    def loop():
        while True:
            pass

    def sleep():
        monkey.get_original("time", "sleep")(60)

    def scrypt():  # in C, without the GIL, for half a second each time: what Python runs in between is next to nothing
        while True:
            hashlib.scrypt(b"x", salt=b"y", n=2**16, r=8, p=4, maxmem=2**30)

    @handler("orders", "bill", batch=2, concurrency=1, linger=0.1, timeout=60)
    def bill(batch: Batch) -> None:
        time.sleep(0.3)  # gevent's: the next two come meanwhile
        print("started", len(batch), flush=True)
        BLOCK()
"""
DRAIN = 1.5


@pytest.fixture
def blocked(nsqd: Server, tmp_path: Path) -> Callable[[str], Any]:
    """``blocked("loop")``: a worker whose handler has begun to block the hub with two of six messages, and two more wait."""

    def start(how: str, options: str = "timeout=60") -> Any:
        (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP).replace("BLOCK()", f"{how}()").replace("timeout=60", options))
        nsqd.http("/mpub?topic=orders", b"1\n2\n3\n4\n5\n6")
        arguments = ("run", "shop", "--broker", f"nsq://{nsqd.address}?heartbeat=1s", "--drain", str(DRAIN), "--ledger", "ledger")
        return working(*arguments, cwd=tmp_path, ready="started 2")

    return start


def counts(nsqd: Server) -> tuple[int, int]:
    """In flight, and the sum of the RDYs."""
    found = nsqd.channel_stats("orders", "bill")
    return found["in_flight_count"], sum(client["ready_count"] for client in found["clients"] or [])


def end(worker: Worker, *, within: float) -> int:
    code = worker.process.wait(within)
    worker.wait()
    return code


@pytest.mark.parametrize("how", ["loop", "sleep", "scrypt"])
def test_what_has_not_started_is_given_back_at_once_and_what_runs_when_the_process_ends_by_itself(blocked, nsqd, tmp_path, how):
    with blocked(how) as worker:
        worker.wait_until(lambda: counts(nsqd)[0] == 4)
        worker.signal(signal.SIGTERM)
        began = time.monotonic()
        worker.wait_until(lambda: counts(nsqd) == (2, 0))
        assert worker.process.poll() is None, "it is given back while the handler may still end"
        assert end(worker, within=20) == 0
        assert time.monotonic() - began > DRAIN
    stats = nsqd.channel_stats("orders", "bill")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"], stats["timeout_count"]) == (6, 0, 4, 0)
    assert json.loads((tmp_path / "ledger").read_text())["orders/bill"] == {
        "received": 4, "finished": 0, "requeued": 4, "dead": 0, "lease_lost": 0,
    }  # fmt: skip
    assert any("a handler still blocks the hub after the time to drain" in line for line in worker.err)


def test_what_another_worker_would_give_up_unrun_is_kept_for_the_hub_as_long_as_there_is_time(blocked, nsqd):
    """It has had its last delivery. To store it with its count takes a hub that turns; at the end it is given back anyway."""
    with blocked("loop", "timeout=60, max_attempts=1") as worker:
        worker.wait_until(lambda: counts(nsqd)[0] == 4)
        worker.signal(signal.SIGTERM)
        worker.wait_until(lambda: counts(nsqd)[1] == 0)
        time.sleep(0.7)  # in which the guardian comes by twice
        assert (counts(nsqd)[0], worker.process.poll()) == (4, None)
        assert end(worker, within=20) == 0
    stats = nsqd.channel_stats("orders", "bill")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (6, 0, 4)


def test_a_second_signal_does_not_wait_for_the_drain(blocked, nsqd, tmp_path):
    with blocked("loop") as worker:
        worker.wait_until(lambda: counts(nsqd)[0] == 4)
        worker.signal(signal.SIGTERM)
        worker.wait_until(lambda: counts(nsqd) == (2, 0))
        worker.signal(signal.SIGTERM)
        assert end(worker, within=20) == 143
    stats = nsqd.channel_stats("orders", "bill")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (6, 0, 4)


def test_a_third_signal_ends_it_where_it_stands(blocked):
    with blocked("loop") as worker:
        for _ in range(3):
            worker.signal(signal.SIGTERM)
            time.sleep(0.05)
        assert end(worker, within=20) == 143


def test_a_handler_that_ends_within_the_drain_has_finished_its_messages(nsqd, tmp_path):
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP).replace("BLOCK()", 'monkey.get_original("time", "sleep")(2)'))
    nsqd.http("/mpub?topic=orders", b"1\n2\n3\n4\n5\n6")
    arguments = ("run", "shop", "--broker", f"nsq://{nsqd.address}?heartbeat=1s", "--drain", "15", "--ledger", "ledger")
    with working(*arguments, cwd=tmp_path, ready="started 2") as worker:
        worker.wait_until(lambda: counts(nsqd)[0] == 4)
        worker.signal(signal.SIGTERM)
        worker.wait_until(lambda: counts(nsqd) == (2, 0))
        assert end(worker, within=20) == 0
    stats = nsqd.channel_stats("orders", "bill")
    assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"], stats["timeout_count"]) == (4, 0, 2, 0)
    assert json.loads((tmp_path / "ledger").read_text())["orders/bill"] == {
        "received": 4, "finished": 2, "requeued": 2, "dead": 0, "lease_lost": 0,
    }  # fmt: skip
