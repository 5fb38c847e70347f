"""Dedupe by a file in a real worker, wherever calls are made: repeats that come at the same time, and later."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from framework import Publisher
from framework.testing.servers import Server
from framework.testing.workers import working

pytestmark = pytest.mark.real
MODULE = """
import os, time
from framework import Dedupe, Message, handler

@handler("orders", "billing", concurrency=4, slots={slots!r}, middleware=[Dedupe({keys!r}, wait=0.2)])
def bill(message: Message) -> None:
    with open({out!r}, "a") as out:
        out.write(message.body.decode() + "\\n")
    time.sleep(0.005)
"""


@pytest.mark.parametrize("slots", ["greenlet", "thread", "process"])
def test_what_comes_twice_is_handled_once(start_nsqd: Callable[..., Server], tmp_path: Path, slots: str) -> None:
    nsqd, out = start_nsqd(), tmp_path / "out"
    text = MODULE.format(slots=slots, keys=str(tmp_path / "billed.sqlite"), out=str(out))
    (tmp_path / "billing.py").write_text(text)
    url = f"nsq://{nsqd.address}?headers=true"
    publisher = Publisher([url])
    with working("run", "billing", "--broker", url, cwd=tmp_path) as worker:
        for number in (*range(50), *range(25)):
            for _ in range(2):
                publisher.publish("orders", b"%d" % number, headers={"idempotency-key": f"order-{number}"})
        publisher.close()
        until = time.monotonic() + 60
        while any(nsqd.channel_stats("orders", "billing")[name] for name in ("depth", "in_flight_count", "deferred_count")):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert worker.stop() == 0
    assert Counter(out.read_text().split()) == {f"{number}": 1 for number in range(50)}
