"""Workers of a real RocketMQ, each request of whom passes a gate, and what they have handled."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from framework.testing.workers import Worker
from tests.transports.rocketmq.gate import Gates
from tests.transports.rocketmq.kit import Kit

SOON = 15.0
"""Seconds in which a worker ends that was told to: its own 10 s for what runs, and a busy machine."""


class Shop:
    """Workers of one topic. Each message that was handled is a line in a file."""

    def __init__(self, kit: Kit, folder: Path, options: str = "mode=pull") -> None:
        self.kit, self._folder, self._file, self._options = kit, folder, folder / "handled", options
        self._file.touch()
        self.gates = Gates(kit.server.address, kit.server.broker.address)
        self._workers: list[Worker] = []
        (folder / "shop.py").write_text(f"""
import os, gevent
from framework import handler
@handler({kit.topic!r}, "billing", concurrency=10)
def bill(body: bytes) -> None:
    gevent.sleep(0.02)
    fd = os.open({str(self._file)!r}, os.O_WRONLY | os.O_APPEND)
    os.write(fd, body + b"\\n")
    os.close(fd)
""")
        kit.open(f"&{options}").ensure(kit.topic, ["billing"])

    def start(self, address: str = "", *, ready: bool = True) -> Worker:
        url = f"rocketmq://{address or self.gates.name_server.address}?{self._options}"
        more = ("--poll-interval=1s", "--connect-deadline=60s", "--drain=10s")
        worker = Worker("run", "shop", "--broker", url, *more, cwd=self._folder)
        self._workers.append(worker)
        if ready:
            worker.wait_for("ready", deadline=60.0)
        return worker

    def publish(self, first: int, last: int) -> None:
        self.kit.spread(*(b"%d" % number for number in range(first, last)))

    def handled(self) -> Counter[int]:
        return Counter(map(int, self._file.read_bytes().split()))

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.process.wait()
        self.gates.stop()


def told_to_stop(worker: Worker) -> float:
    """Seconds until it has ended, by 0."""
    began = time.monotonic()
    assert worker.stop() == 0, worker.err[-10:]
    return time.monotonic() - began
