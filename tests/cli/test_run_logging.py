"""A worker whose app's own log handlers wait for ever, or fail: it handles and stops as ever."""

from __future__ import annotations

import json
import signal
import textwrap
from pathlib import Path

import pytest

from framework.testing.servers import Server
from framework.testing.workers import working

pytestmark = pytest.mark.real

SHOP = """
    import logging, threading, time
    from framework import Retry, handler

    class Odd(logging.Handler):
        def emit(self, record):
            if record.levelno >= logging.ERROR:
                EMIT

    odd = Odd()
    logging.getLogger().addHandler(odd)

    @handler("orders", "bill", concurrency=3, policy={ValueError: Retry(delay=0.1)}, timeout=60)
    def bill(text: str) -> None:
        time.sleep(0.01)
        if text == "lock":
            odd.acquire()
            print("locked", flush=True)
            time.sleep(60)
        with open("handled", "a") as file:
            file.write(text)
        if text == "x":
            raise TypeError("no x")
"""
ODD = {"waits": "time.sleep(600)", "fails": "raise RuntimeError('no log')", "exits": "raise SystemExit(5)"}


def ledger(folder: Path) -> dict[str, int]:
    return dict(json.loads((folder / "ledger").read_text())["orders/bill"])


@pytest.mark.parametrize("how", ODD)
def test_a_log_handler_that_is_no_good_stops_no_slot_and_no_stop(how: str, nsqd: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP).replace("EMIT", ODD[how]))
    nsqd.http("/mpub?topic=orders", "\n".join("x" * 6 + "o" * 20).encode())
    handled = tmp_path / "handled"
    with working(
        "run", "shop", "--broker", f"nsq://{nsqd.address}", "--ledger", "ledger", cwd=tmp_path, ready="subscribed"
    ) as worker:
        worker.wait_until(lambda: handled.exists() and handled.read_text().count("o") == 20)
        assert worker.stop() == 0
    counts = ledger(tmp_path)
    assert (counts["finished"], counts["lease_lost"]) == (20, 0)
    assert counts["requeued"] == counts["received"] - 20 >= 6
    assert nsqd.channel_stats("orders", "bill")["in_flight_count"] == 0


@pytest.mark.parametrize("times", [1, 2])
def test_nor_does_a_handler_that_holds_the_lock_of_the_log(times: int, nsqd: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP).replace("EMIT", "pass"))
    nsqd.http("/pub?topic=orders", b"lock")
    arguments = ("run", "shop", "--broker", f"nsq://{nsqd.address}", "--ledger", "ledger", "--drain", "1")
    with working(*arguments, cwd=tmp_path, ready="locked") as worker:
        for _ in range(times):
            worker.signal(signal.SIGTERM)
        assert worker.process.wait(15) in ((0,) if times == 1 else (0, 143))  # the two may come as one
    assert ledger(tmp_path) == {"received": 1, "finished": 0, "requeued": 1, "dead": 0, "lease_lost": 0}
    assert nsqd.channel_stats("orders", "bill")["in_flight_count"] == 0
