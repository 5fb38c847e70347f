"""A worker whose stderr nobody reads: it handles, touches and stops as ever, and says later how much of its log is missing."""

from __future__ import annotations

import fcntl
import re
import signal
import subprocess
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from framework.testing.servers import Server
from framework.testing.workers import Worker

pytestmark = pytest.mark.real

PIPE_BYTES = 4096
MESSAGES = 6000
SHOP = """
    import logging, time
    from framework import Reject, handler

    log = logging.getLogger("shop")

    @handler("orders", "say", concurrency=20, max_in_flight=200, max_attempts=1, timeout=20)
    def say(text: str) -> None:
        log.warning("one line about %s, %s", text, "x" * 100)
        log.warning("another one about %s", text)
        if text == "slow":
            time.sleep(2.5)
        elif int(text) % 5 == 0:
            raise Reject(f"no {text}")
"""


class Unread(Worker):
    """Its stderr is a small pipe that nobody reads until ``read``."""

    def _read_stderr(self, stream: IO[bytes]) -> list[threading.Thread]:
        fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return []

    def read(self) -> None:
        assert self.process.stderr is not None
        if len(self._readers) > 1:
            return
        self._readers += super()._read_stderr(self.process.stderr)


@pytest.fixture
def worker(nsqd: Server, tmp_path: Path) -> Iterator[Unread]:
    """With thousands of messages, of which every fifth fails, and one that needs its lease kept; its heartbeats are short."""
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))
    nsqd.http("/mpub?topic=orders", "\n".join(["slow", *map(str, range(MESSAGES))]).encode())
    url = f"nsq://{nsqd.address}?heartbeat=1s&msg_timeout=1s"
    nsqd.http("/channel/create?topic=orders&channel=say", b"")
    worker = Unread("run", "shop", "--broker", url, "--drain", "5", cwd=tmp_path)
    yield worker
    if worker.process.poll() is None:
        worker.process.kill()
    worker.read()
    worker.wait()


def has_handled_all(worker: Unread, nsqd: Server) -> None:
    """Each was received once and finished by the connection that received it."""

    def settled() -> int:
        return sum(client["finish_count"] for client in nsqd.channel_stats("orders", "say")["clients"] or [])

    worker.wait_until(lambda: settled() == MESSAGES + 1, deadline=30)
    stats = nsqd.channel_stats("orders", "say")
    assert (stats["timeout_count"], stats["requeue_count"], len(stats["clients"])) == (0, 0, 1)
    (letters,) = nsqd.http("/stats?format=json&topic=orders.say.dead")["topics"]
    assert letters["message_count"] == MESSAGES / 5


def test_a_stderr_that_nobody_reads_stops_no_handler_and_what_is_missing_is_counted(worker: Unread, nsqd: Server) -> None:
    has_handled_all(worker, nsqd)
    worker.read()
    worker.wait_for("pieces of this log were dropped while nobody read it")
    assert worker.stop() == 0
    told = re.compile(r"^\d{4}-\S+ \d+ WARNING framework.observe.stderr (\d+) pieces of this log were dropped")
    dropped = sum(int(count) for line in worker.err for count in told.findall(line))
    kept = sum("WARNING shop " in line for line in worker.err)
    assert 0 < kept < 2 * MESSAGES
    assert kept + dropped >= 2 * MESSAGES
    assert any("ledger orders/say" in line for line in worker.err), "it was read again, and is complete from there"


def test_nor_does_it_hold_up_the_end(worker: Unread, nsqd: Server) -> None:
    has_handled_all(worker, nsqd)
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(15) == 0


def test_nor_the_end_of_a_verb_that_fails(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import sys\nprint('x' * 10000, file=sys.stderr)\n" + textwrap.dedent(SHOP))
    worker = Unread("run", "shop", "--broker", "nsq://127.0.0.1:1", "--connect-deadline", "1", cwd=tmp_path)
    try:
        assert worker.process.wait(15) == 3
    except subprocess.TimeoutExpired:
        worker.process.kill()
        raise
    finally:
        worker.read()
        worker.wait()
