"""Our embedded nsqd beside a real nsqd: publishing, consuming, and the way from publish to handler. Ours is durable, theirs not.

"nsqd" has its defaults: what does not fit its memory queue goes to disk, unsynced. "nsqd in memory" keeps all of it in memory.
Ours syncs before each OK. Publishing is a bare socket, so that the server is what is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import consume, latency, measure, peers
from framework.testing import servers

SERVERS: dict[str, Callable[[Path], servers.Server]] = {
    "ours": servers.own_nsqd,
    "nsqd": servers.real_nsqd,
    "nsqd in memory": lambda folder: servers.real_nsqd(folder, "--mem-queue-size=10000000"),
}
TOPIC = "durable"
PARTS = {"mpub": "MPUB of 500", "pipelined": "PUB, 100 at once", "ours": "our consumer", "go-nsq": "go-nsq", "latency": "latency"}
MESSAGES = {"ours": 1_000_000, "go-nsq": 250_000}
RATE, SAMPLES = 500, 3000


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    for part in options.parts:
        if part == "latency":
            _latency(options)
            continue
        run = _publish if part in ("mpub", "pipelined") else _consume
        rounds: dict[str, list[measure.Result]] = {name: [] for name in options.servers}
        for n in range(options.rounds):
            for name in options.servers:
                print(f"{PARTS[part]}: round {n + 1} of {options.rounds}, {name}", file=sys.stderr)
                with _fresh(name) as server:
                    rounds[name].append(run(server, part, options.scale))
        print(measure.table(f"{PARTS[part]}, {options.rounds} rounds, medians", rounds), flush=True)


def _publish(server: servers.Server, job: str, scale: float) -> measure.Result:
    client = peers.start("bare-loop", job, server.address, TOPIC)
    try:
        figures = measure.window(server, client, lambda: measure.published(server, TOPIC), 5_000, sys.maxsize, longest=3 * scale)
        return measure.Result(*figures, fault="" if client.poll() is None else f"ended with {client.returncode}")
    finally:
        peers.stop(client)


def _consume(server: servers.Server, name: str, scale: float) -> measure.Result:
    return consume.measured(server, name, int(MESSAGES[name] * scale))


def _latency(options: argparse.Namespace) -> None:
    print(f"publish -> handler, {RATE} messages a second, our consumer, milliseconds")
    print(f"  {'server':<14} {'p50':>8} {'p99':>8} {'worst':>8}")
    for n in range(options.rounds):
        for name in options.servers:
            print(f"latency: round {n + 1} of {options.rounds}, {name}", file=sys.stderr)
            with _fresh(name) as server:
                times = sorted(latency.measured(server, "ours", RATE, int(SAMPLES * options.scale)))
                sync = " ".join(line.rpartition(" takes ")[2] for line in server.log if "DISK: a sync" in line)
            figures = " ".join(f"{latency.at(times, part):8.2f}" for part in (0.5, 0.99, 1.0))
            print(f"  {name:<14} {figures}" + (f"   (a sync: {sync})" if sync else ""), flush=True)


@contextmanager
def _fresh(name: str) -> Iterator[servers.Server]:
    with tempfile.TemporaryDirectory() as folder, servers.running(SERVERS[name](Path(folder))) as server:
        yield server


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embedded", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="how many messages, times the usual number")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
