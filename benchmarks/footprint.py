"""What our embedded nsqd takes of memory and disk: while messages flow through it, and for a backlog across a kill -9."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks import measure, peers
from framework.testing import servers
from framework.transports import open_transports

MEBI = 1 << 20
AFTERWARDS = 1.5
"""Seconds after the last finish, in which the disk is given back."""
PATIENCE = 300.0
AT_ONCE = 5_000


class Peak:
    """The most memory and disk that ``server`` was seen with."""

    def __init__(self, server: servers.Server) -> None:
        self._server = server
        self.memory = self.disk = 0.0

    def look(self) -> None:
        self.memory = max(self.memory, memory(self._server))
        self.disk = max(self.disk, disk(self._server))


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    with tempfile.TemporaryDirectory() as folder, servers.running(servers.own_nsqd(Path(folder))) as server:
        _flow(server, options.messages)
    with tempfile.TemporaryDirectory() as folder, servers.running(servers.own_nsqd(Path(folder))) as server:
        _backlog(server, options.messages // 2)


def _flow(server: servers.Server, messages: int) -> None:
    print(f"flow: {messages:,} messages", file=sys.stderr)
    measure.create(server)
    consumer = peers.start("ours", "consume", server.address)
    producer = open_transports([f"nsq://{server.address}"])[0].producer()
    peak, begun = Peak(server), time.monotonic()
    try:
        for start in range(0, messages, AT_ONCE):
            producer.publish(measure.TOPIC, [measure.BODY] * min(AT_ONCE, messages - start))
            peak.look()
        while not done(server, messages):
            _in_time(begun, "finishing")
            peak.look()
            time.sleep(measure.POLL)
        took = time.monotonic() - begun
    finally:
        producer.close()
        peers.stop(consumer)
    time.sleep(AFTERWARDS)
    print(
        f"flow: {messages:,} messages of {len(measure.BODY)} bytes published and finished in {took:.1f} s; at most "
        f"{peak.memory:.0f} MiB of memory and {peak.disk:.0f} of disk; {disk(server):.0f} of disk {AFTERWARDS:g} s afterwards",
        flush=True,
    )


def _backlog(server: servers.Server, messages: int) -> None:
    print(f"backlog: {messages:,} messages", file=sys.stderr)
    measure.fill(server, messages)
    print(f"backlog: {messages:,} messages take {memory(server):.0f} MiB of memory and {disk(server):.0f} of disk", flush=True)
    server.kill()
    begun = time.monotonic()
    server.start()
    depth = measure.channel(server).depth
    took = time.monotonic() - begun
    print(f"backlog: {depth:,} of them there again {took:.1f} s after kill -9, in {memory(server):.0f} MiB", flush=True)
    consumer = peers.start("ours", "consume", server.address)
    begun = time.monotonic()
    try:
        while (stats := measure.channel(server)).depth + stats.in_flight_count:
            _in_time(begun, "consuming the backlog")
            time.sleep(measure.POLL)
    finally:
        peers.stop(consumer)
    print(f"backlog: consumed in {time.monotonic() - begun:.1f} s", flush=True)


def _in_time(begun: float, what: str) -> None:
    if time.monotonic() - begun > PATIENCE:
        raise RuntimeError(f"{what} took longer than {PATIENCE:g} s")


def done(server: servers.Server, messages: int) -> bool:
    """All were in the channel, and none is any more."""
    stats = measure.channel(server)
    return stats.message_count >= messages and not stats.depth + stats.in_flight_count


def memory(server: servers.Server) -> float:
    """MiB that its processes hold resident."""
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    return float(sum(one.memory_info().rss for one in [process, *process.children(recursive=True)])) / MEBI


def disk(server: servers.Server) -> float:
    """MiB of its folder; a file may go while it is looked at."""
    size = 0
    for file in server.data.rglob("*"):
        try:
            size += file.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return size / MEBI


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.footprint", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000, help="how many flow; half as many are the backlog")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
