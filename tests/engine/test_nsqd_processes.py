"""Worker processes against a real nsqd: killed and stopped in the middle, and every message accounted for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.testing.servers import Server
from tests.engine.real import publish

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.real


WORKER = """
import os, signal, sys, time
from gevent import monkey; monkey.patch_all()
import gevent
from framework.engine.supervisor import Supervisor
from framework.errors import HandlerTimeout
from framework.handler import HandlerSpec
from framework.transports import open_transports

url, journal = sys.argv[1:]
out = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def function(message):
    gevent.sleep(0.002)
    os.write(out, message.body + b"\\n")

spec = HandlerSpec("orders", "billing", function, None, 20, 200, 60.0, 0, 0, 0.0)
supervisor = Supervisor([spec], open_transports([url]), publish=print)
gevent.signal_handler(signal.SIGTERM, supervisor.stop)
supervisor.run()
print(supervisor.ledgers["orders/billing"].as_dict(), flush=True)
"""


class Process:
    """A worker process of its own, that writes each body it has handled to a journal."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.journal = folder / "journal"
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, f"nsq://{server.address}", str(self.journal)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def handled(self) -> list[bytes]:
        return self.journal.read_bytes().split(b"\n")[:-1] if self.journal.exists() else []

    def until(self, condition: Callable[[], Any], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, "the worker ended"
            assert time.monotonic() < deadline, "the condition did not become true in time"
            time.sleep(0.02)

    def end(self, sig: signal.Signals) -> str:
        os.kill(self.process.pid, sig)
        return self.process.communicate(timeout=30)[0]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Callable[[Server], Process]]:
    started: list[Process] = []

    def start(server: Server) -> Process:
        started.append(Process(server, tmp_path))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_of_ten_thousand_messages_loses_none(start_nsqd, processes):
    server = start_nsqd("--msg-timeout=2s")
    bodies = [b"%d" % i for i in range(10_000)]
    publish(server, bodies)
    first = processes(server)
    first.until(lambda: len(first.handled()) > 2000)
    first.end(signal.SIGKILL)
    assert len(first.handled()) < 9000
    second = processes(server)
    second.until(lambda: server.channel_stats("orders", "billing")["clients"] and len(set(second.handled())) == 10_000)
    second.until(lambda: server.channel_stats("orders", "billing")["in_flight_count"] == 0)
    assert set(second.handled()) == set(bodies)
    assert len(second.handled()) <= 10_000 + 200
    second.end(signal.SIGTERM)


@pytest.mark.slow
def test_sigterm_in_the_middle_finishes_or_gives_back_everything_and_nothing_is_handled_twice(start_nsqd, processes):
    server = start_nsqd("--msg-timeout=60s")
    bodies = [b"%d" % i for i in range(10_000)]
    publish(server, bodies)
    first = processes(server)
    first.until(lambda: len(first.handled()) > 2000)
    began = time.monotonic()
    first.end(signal.SIGTERM)
    assert time.monotonic() - began < 5
    assert first.process.returncode == 0
    stats = server.channel_stats("orders", "billing")
    assert (stats["in_flight_count"], stats["timeout_count"]) == (0, 0)
    assert stats["depth"] + stats["deferred_count"] == 10_000 - len(first.handled())
    second = processes(server)
    second.until(lambda: len(second.handled()) == 10_000)
    assert set(second.handled()) == set(bodies)
    second.end(signal.SIGTERM)
