"""Several collectors of one channel on several nsqds, all in one spool: killed, paused, and an nsqd that comes back elsewhere."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from framework import Publisher
from framework.spool import segment
from framework.testing import servers
from framework.testing.servers import ROOT, ServerMissing
from framework.testing.workers import Worker
from tests.chaos.trial import Scenario, Verdict

RATE = 20_000
"""Messages a second, of all nodes together."""
_COLLECTORS = _NODES = 4
_AT_ONCE = 250
_SIZE = 200
_LEASE = 5.0
_PATIENCE = 120.0
_SPAN = 1 << 40
"""How many numbers a node has for its messages."""
_LOOKS = 6
"""In a row: a message on its way from nsqd's queue to a client is in none of its counts."""


@dataclass
class _Node:
    """An nsqd with a number of its own in its ids, and a publisher to it alone, at its share of the rate."""

    number: int
    folder: Path
    lookupd: str
    sent: int = 0
    nsqd: servers.Server = field(init=False)
    _stays: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """At an address that it has not had."""
        flags = (f"--node-id={self.number + 1}", f"--msg-timeout={_LEASE:.0f}s", f"--lookupd-tcp-address={self.lookupd}")
        self.nsqd = servers.real_nsqd(self.folder, *flags)
        self.nsqd.start()

    def move(self) -> int:
        """Returns how many messages it had in flight. Nobody publishes meanwhile, so no message is in doubt."""
        with self._stays:
            held = int(self.nsqd.channel_stats("chaos", "land").get("in_flight_count", 0))
            self.nsqd.stop()
            self.start()
        return held

    def publish(self, stop: threading.Event) -> None:
        began, address = time.monotonic(), self.nsqd.address
        publisher = Publisher(f"nsq://{address}")
        while not stop.is_set():
            if (time.monotonic() - began) * RATE / _NODES < self.sent:
                stop.wait(0.005)
                continue
            with self._stays:
                if address != self.nsqd.address:
                    publisher.close()
                    address = self.nsqd.address
                    publisher = Publisher(f"nsq://{address}")
                numbers = range(self.sent, self.sent + _AT_ONCE)
                publisher.publish_many("chaos", [_body(self.number * _SPAN + n) for n in numbers])
                self.sent = numbers.stop
        publisher.close()

    def waits(self) -> int:
        stats = self.nsqd.channel_stats("chaos", "land")
        return sum(int(stats[name]) for name in ("depth", "in_flight_count", "deferred_count"))


def _body(number: int) -> bytes:
    return struct.pack(">Q", number).ljust(_SIZE, b".")


@dataclass
class _Run:
    """What runs, and what is done to it."""

    folder: Path
    lookupd: str
    nodes: list[_Node]
    workers: list[Worker] = field(default_factory=list)
    faults: int = 0

    def start_collector(self) -> None:
        environ = {"CHAOS_FOLDER": str(self.folder), "PYTHONPATH": str(ROOT)}
        broker = f"nsq+lookupd://{self.lookupd}"
        arguments = ("run", "tests.chaos.landing", "--broker", broker, "--poll-interval=1s", "--connect-deadline=60s")
        self.workers.append(Worker(*arguments, cwd=self.folder, env=environ))

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _PATIENCE
        while not condition():
            ended = [one.err[-3:] for one in self.workers if one.process.poll() not in (None, -signal.SIGKILL)]
            if ended or time.monotonic() > until:
                raise RuntimeError(f"{what}: it did not come to that; ended by themselves: {ended}")
            time.sleep(0.02)

    def kill_between_durable_and_finished(self) -> None:
        """Whichever collector lands next; another one begins in its place."""
        (self.folder / "die").touch()
        self.wait(lambda: any(one.process.poll() == -signal.SIGKILL for one in self.workers), "a collector that died")
        self.workers = [one for one in self.workers if one.process.poll() is None]
        self.start_collector()
        self.faults += 1

    def pause(self) -> None:
        """One of them, until what it holds was delivered to another."""
        pid = self.workers[0].process.pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2.2 * _LEASE)
        os.kill(pid, signal.SIGCONT)
        self.faults += 1

    def rows(self) -> int:
        return sum(one.rows for one in segment.listing(self.folder / "spool" / "main"))

    def drain(self) -> None:
        looks = 0
        until = time.monotonic() + _PATIENCE
        while looks < _LOOKS:
            looks = 0 if any(node.waits() for node in self.nodes) else looks + 1
            if time.monotonic() > until:
                raise RuntimeError(f"{[node.waits() for node in self.nodes]} messages do not come: {self.workers[0].err[-5:]}")
            time.sleep(0.2)
        for one in self.workers:
            if (code := one.stop()) != 0:
                raise RuntimeError(f"a collector ended with {code}: {one.err[-5:]}")


def collectors_killed(folder: Path, times: int) -> Verdict:
    """Killed between durable and finished, ``times``; meanwhile one is paused for longer than its lease, and an nsqd that has
    messages in flight comes back at another address. All of it at `RATE`, or at what the machine can do, which the name says."""
    if find_spec("pyspark") is None:
        raise ServerMissing("Spark is missing: pip install 'nsq-workers[spark]'")
    lookupd = servers.real_nsqlookupd()
    nodes = [_Node(number, folder / f"nsqd-{number}", lookupd.address) for number in range(_NODES)]
    run = _Run(folder, lookupd.http_address, nodes)
    try:
        with servers.running(lookupd):
            for node in nodes:
                node.folder.mkdir()
                node.start()
                for what in ("topic/create?topic=chaos", "channel/create?topic=chaos&channel=land"):
                    node.nsqd.http(f"/{what}", b"")
            for _ in range(_COLLECTORS):
                run.start_collector()
            rate = _while_published(run, times)
    finally:
        for one in run.workers:
            one.process.kill()
            one.process.wait()
        for node in nodes:
            node.nsqd.kill()
    return _verdict(run, f"{_COLLECTORS} collectors, {_NODES} nsqds, {rate:,.0f} msg/s")


def _while_published(run: _Run, times: int) -> float:
    """Returns the rate, in messages a second."""
    stop, failures = threading.Event(), list[Exception]()

    def publish(node: _Node) -> None:
        try:
            node.publish(stop)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=publish, args=(node,)) for node in run.nodes]
    began, moved = time.monotonic(), 0
    for thread in threads:
        thread.start()
    try:
        run.wait(lambda: run.rows() > RATE, "the first rows")
        for number in range(times):
            before = run.rows()
            run.wait(lambda before=before: run.rows() > before + RATE, "rows after a kill")  # type: ignore[misc]
            run.kill_between_durable_and_finished()
            if number == times // 3:
                run.pause()
            if number == 2 * times // 3:
                moved = run.nodes[number % _NODES].move()
                run.faults += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    rate = sum(node.sent for node in run.nodes) / (time.monotonic() - began)
    run.drain()
    timed_out = [int(node.nsqd.channel_stats("chaos", "land")["timeout_count"]) for node in run.nodes]
    if not moved or not sum(timed_out):
        raise RuntimeError(
            f"{moved} in flight at the nsqd that moved, {timed_out} timed out: no fault found messages in the middle"
        )
    return rate


def _verdict(run: _Run, name: str) -> Verdict:
    """By what a query reads of the spool."""
    import numpy

    from framework.spark import options
    from framework.spark.reader import NsqBatchReader

    reader = NsqBatchReader(options.batch_read({"spoolDir": str(run.folder / "spool")}))
    found = bytearray()
    for task in reader.partitions():
        for rows in reader.read(task):
            found += b"".join(body[:8] for body in rows["value"].to_pylist())
    numbers = numpy.frombuffer(found, ">u8")
    sent = numpy.concatenate([numpy.arange(node.sent, dtype=">u8") + node.number * _SPAN for node in run.nodes])
    distinct = numpy.unique(numbers)
    if len(strange := numpy.setdiff1d(distinct, sent)):
        raise RuntimeError(f"{len(strange)} rows that nobody sent")
    doubled = len(numbers) - len(distinct)
    return Verdict(
        name, faults=run.faults, sent=len(sent), handled=len(distinct), duplicates=doubled, unexplained=doubled,
        lost=len(sent) - len(distinct),
    )  # fmt: skip


ALL: dict[str, tuple[Scenario, int, int]] = {"spark-collectors": (collectors_killed, 20, 3)}
"""As in scenarios."""
