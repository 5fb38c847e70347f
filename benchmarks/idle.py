"""What handlers without messages cost: N of them in one process on one real nsqd, each with a topic and a connection of its own.

Seconds from the start of ``workers run`` until all are subscribed, CPU and memory once that is over and nothing comes, seconds
from SIGTERM to the end. The topics exist before: to make one costs nsqd a write of all their names. ``--fresh``: they do not.
``--lookupd``: nsqd is found through an nsqlookupd. ``--rocketmq``: on a real RocketMQ, which has to make the topics.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from framework.testing import servers
from framework.testing.rocketmq import real_rocketmq
from framework.testing.workers import Worker
from framework.transports.nsq.http import Nsqd

MODULE = """
from framework import handler

for number in range({handlers}):
    @handler(f"idle{{number}}", "bench")
    def nothing(body: bytes) -> None: ...
"""
DESCRIPTORS = 100
"""What a process opens beside its connections."""


@dataclass(frozen=True)
class Cost:
    """One run. Seconds, seconds of the worker's CPU until then, the part of a core, MB, seconds."""

    subscribe: float
    start_cpu: float
    cpu: float
    rss: float
    stop: float


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    print(f"{'handlers':>8} {'subscribed s':>13} {'by CPU s':>9} {'idle CPU %':>11} {'RSS MB':>8} {'stopped s':>10}")
    for handlers in options.handlers:
        cost = run(handlers, options)
        start = f"{handlers:8} {cost.subscribe:13.2f} {cost.start_cpu:9.2f}"
        print(f"{start} {cost.cpu * 100:11.2f} {cost.rss:8.0f} {cost.stop:10.2f}", flush=True)


def run(handlers: int, options: argparse.Namespace) -> Cost:
    """Measure over ``seconds``, ``settle`` seconds after all are subscribed. Raises RuntimeError when nsqd saw fewer of them."""
    _allow(handlers + DESCRIPTORS)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if options.rocketmq:
            nsqd, url = None, stack.enter_context(_rocketmq(folder, options.rocketmq))
        else:
            nsqd, url = stack.enter_context(_brokers(folder, handlers, lookupd=options.lookupd, fresh=options.fresh))
        (folder / "idle.py").write_text(MODULE.format(handlers=handlers))
        began = time.monotonic()
        worker = Worker("run", "idle", "--broker", url, "--connect-deadline", "never", "--log-level", "info", cwd=folder)
        try:
            worker.wait_until(lambda: any(line.endswith("ready") for line in worker.err[-50:]), deadline=300.0)
            subscribed = time.monotonic() - began
            start_cpu = _used(psutil.Process(worker.process.pid))
            if nsqd is not None:
                _check(nsqd, handlers, worker)
            time.sleep(options.settle)
            cpu, rss = _watch(worker.process.pid, options.seconds)
            told = time.monotonic()
            worker.signal(signal.SIGTERM)
            code = worker.wait(deadline=120.0)
        finally:
            worker.process.kill()
        if code:
            raise RuntimeError(f"the worker ended with {code}: {worker.err[-3:]}")
        return Cost(subscribed, start_cpu, cpu, rss, time.monotonic() - told)


def _allow(descriptors: int) -> None:
    """For this process and those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(descriptors, hard), hard))


@contextmanager
def _brokers(folder: Path, handlers: int, *, lookupd: bool, fresh: bool) -> Iterator[tuple[servers.Server, str]]:
    with ExitStack() as stack:
        flags: list[str] = []
        if lookupd:
            registry = stack.enter_context(servers.running(servers.real_nsqlookupd()))
            flags = [f"--lookupd-tcp-address={registry.address}"]
        if not fresh:
            (folder / "nsqd.dat").write_text(json.dumps({"version": "1.3.0", "topics": [_topic(n) for n in range(handlers)]}))
        nsqd = stack.enter_context(servers.running(servers.real_nsqd(folder, "--log-level=error", *flags)))
        yield nsqd, f"nsq+lookupd://{registry.http_address}" if lookupd else f"nsq://{nsqd.address}"


@contextmanager
def _rocketmq(folder: Path, mode: str) -> Iterator[str]:
    (data := folder / "rocketmq").mkdir()
    server = real_rocketmq(data, {})
    server.start()
    try:
        yield f"rocketmq://{server.address}?mode={mode}"
    finally:
        server.kill()


def _topic(number: int) -> dict[str, object]:
    """As nsqd writes it down."""
    return {"name": f"idle{number}", "paused": False, "channels": [{"name": "bench", "paused": False}]}


def _check(nsqd: servers.Server, handlers: int, worker: Worker) -> None:
    topics = Nsqd(nsqd.http_address, timeout=30.0).stats().topics or []
    clients = sum(channel.client_count for topic in topics for channel in topic.channels)
    if clients != handlers:
        raise RuntimeError(
            f"nsqd has {clients} subscriptions, not {handlers}; nsqd: {nsqd.log[-3:]}; the worker: {worker.err[-5:]}"
        )


def _watch(pid: int, seconds: float) -> tuple[float, float]:
    process = psutil.Process(pid)
    before, began = _used(process), time.monotonic()
    time.sleep(seconds)
    return (_used(process) - before) / (time.monotonic() - began), process.memory_info().rss / 1e6


def _used(process: psutil.Process) -> float:
    """Seconds of CPU until now."""
    times = process.cpu_times()
    return times.user + times.system


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    parser.add_argument("--handlers", type=int, nargs="+", default=[1, 1000, 5000])
    parser.add_argument("--settle", type=float, default=5.0, help="seconds between the last subscription and the first look")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of idleness that are looked at")
    parser.add_argument("--lookupd", action="store_true", help="find nsqd through an nsqlookupd")
    parser.add_argument("--rocketmq", choices=["pop", "pull"], help="how a real RocketMQ is read, in place of nsqd")
    parser.add_argument("--fresh", action="store_true", help="have nsqd make the topics when they are subscribed to")
    options = parser.parse_args(arguments)
    if min(options.handlers) < 1 or options.seconds <= 0:
        parser.error("there must be a handler, and some time to look at it")
    return options


if __name__ == "__main__":
    sys.exit(main())
