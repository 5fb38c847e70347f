"""A rate over a window, from a server's own counters, with the CPU that client and server took in it. It knows no client."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from framework.testing import servers
from framework.transports import open_transports
from framework.transports.nsq.http import ChannelStats, Nsqd, TopicStats

BODY = b'{"order": 123456, "customer": "someone", "items": [1, 2, 3], "note": "' + b"x" * 128 + b'"}'
assert len(BODY) == 200
TOPIC, CHANNEL = "bench", "bench"
POLL = 0.05


@dataclass(frozen=True)
class Result:
    """One run. Rates in messages a second, CPU in microseconds a message."""

    rate: float
    client_cpu: float
    server_cpu: float
    fault: str = ""
    """What did not end as it should have; empty when all did."""


@dataclass(frozen=True)
class _Sample:
    at: float
    count: int
    client: float
    server: float


@contextmanager
def fresh_nsqd(*, everywhere: bool = False) -> Iterator[servers.Server]:
    """A real nsqd that keeps everything in memory, so that the disk has no part in it.

    ``everywhere``: it listens at every address of this machine, those of the loopback network among them.
    """
    with tempfile.TemporaryDirectory() as folder:
        nsqd = _nsqd(Path(folder))
        if everywhere:
            nsqd.command.append(f"--tcp-address=0.0.0.0:{nsqd.tcp_port}")
        with servers.running(nsqd):
            yield nsqd


def _nsqd(folder: Path) -> servers.Server:
    return servers.real_nsqd(folder, "--mem-queue-size=10000000", "--log-level=error")


def create(nsqd: servers.Server) -> None:
    """Make topic and channel."""
    api = Nsqd(nsqd.http_address)
    api.create_topic(TOPIC)
    api.create_channel(TOPIC, CHANNEL)


def fill(nsqd: servers.Server, count: int, body: bytes = BODY) -> None:
    """Put ``count`` bodies into the channel; returns when all are there."""
    create(nsqd)
    producer = open_transports([f"nsq://{nsqd.address}"])[0].producer()
    for start in range(0, count, 20_000):
        producer.publish(TOPIC, [body] * min(20_000, count - start))
    producer.close()
    while channel(nsqd).depth < count:  # nsqd copies from topic to channel behind our back
        time.sleep(POLL)


def window(
    server: servers.Server, client: subprocess.Popen[bytes], count: Callable[[], int], begin: int, end: int, *, longest: float
) -> tuple[float, float, float]:
    """Rate, client CPU and server CPU between the first time ``count()`` is ``begin`` or more, and ``end`` or more.

    ``longest``: seconds after which the window is closed whatever was reached.
    """
    assert server.process is not None
    processes = psutil.Process(client.pid), psutil.Process(server.process.pid)
    first: _Sample | None = None
    deadline = time.monotonic() + 60
    while True:
        sample = _Sample(time.monotonic(), count(), *map(_cpu, processes))
        if first is None and sample.count >= max(1, begin):
            first, deadline = sample, sample.at + longest
        elif first is not None and (sample.count >= end or sample.at > deadline):
            break
        elif sample.at > deadline or client.poll() is not None:
            raise RuntimeError("the client ended, or did nothing for a minute")
        time.sleep(POLL)
    n = sample.count - first.count
    cpu = (sample.client - first.client) / n * 1e6, (sample.server - first.server) / n * 1e6
    return n / (sample.at - first.at), *cpu


def _cpu(process: psutil.Process) -> float:
    """Seconds of CPU of the process and its children."""
    tree = [process, *process.children(recursive=True)]
    return float(sum(times.user + times.system for times in (one.cpu_times() for one in tree)))


def channel(nsqd: servers.Server) -> ChannelStats:
    return _topic(nsqd, TOPIC, clients=True).channels[0]


def published(nsqd: servers.Server, topic: str) -> int:
    return _topic(nsqd, topic, clients=False).message_count


def _topic(nsqd: servers.Server, topic: str, *, clients: bool) -> TopicStats:
    topics = Nsqd(nsqd.http_address).stats(topic, clients=clients).topics
    return topics[0] if topics else TopicStats(topic)


def table(title: str, rounds: dict[str, list[Result]]) -> str:
    """Medians of the rounds, each client against ours (or the first); one that did not end cleanly has its fault below."""
    ours = _median([r.rate for r in rounds.get("ours") or next(iter(rounds.values()))])
    lines = [
        title,
        f"  {'client':<11} {'k msg/s':>9} {'(lowest, highest)':>19} {'ours / it':>10} {'client us/msg':>14} {'server us':>10}",
    ]
    for name, results in rounds.items():
        rates = [r.rate / 1e3 for r in results]
        low_high = f"({min(rates):.1f}, {max(rates):.1f})"
        ratio = ours / 1e3 / _median(rates)
        cpu = f"{_median([r.client_cpu for r in results]):14.2f} {_median([r.server_cpu for r in results]):10.2f}"
        lines.append(f"  {name:<11} {_median(rates):9.1f} {low_high:>19} {ratio:9.2f}x {cpu}")
    lines += [f"  {name}: {r.fault}" for name, results in rounds.items() for r in results if r.fault]
    return "\n".join(lines)


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)
