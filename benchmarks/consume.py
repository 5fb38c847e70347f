"""How fast a handler that does nothing consumes from a real nsqd: 200 bytes a message, 2,500 in flight, one connection.

Ours runs through the whole runtime: @handler, Supervisor, middleware, leases, ledger. Every client is a process of its own, every
run has a fresh nsqd, and the clients take turns, so that a noisy neighbour hits all of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks import measure, peers
from framework.testing import servers

MESSAGES = {"ours": 1_000_000, "bare-loop": 1_000_000, "go-nsq": 250_000, "nsq-py": 1_000_000, "gnsq": 100_000, "pynsq": 60_000}
"""About three to six seconds for each."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    rounds: dict[str, list[measure.Result]] = {name: [] for name in options.clients}
    for n in range(options.rounds):
        for name in options.clients:
            print(f"consume: round {n + 1} of {options.rounds}, {name}", file=sys.stderr)
            rounds[name].append(run(name, int(MESSAGES[name] * options.scale)))
    print(measure.table(f"consume, {options.rounds} rounds, medians", rounds))


def run(name: str, messages: int) -> measure.Result:
    with measure.fresh_nsqd() as nsqd:
        return measured(nsqd, name, messages)


def measured(nsqd: servers.Server, name: str, messages: int) -> measure.Result:
    """Fill ``nsqd`` and have the client empty it."""
    measure.fill(nsqd, messages)
    client = peers.start(name, "consume", nsqd.address)
    try:

        def finished() -> int:
            return sum(c.finish_count for c in measure.channel(nsqd).clients or [])

        figures = measure.window(nsqd, client, finished, messages // 10, messages * 9 // 10, longest=60)
        return measure.Result(*figures, fault=_fault(nsqd, messages))
    finally:
        peers.stop(client)


def _fault(nsqd: servers.Server, messages: int, patience: float = 30.0) -> str:
    """What nsqd says is wrong when all should be finished, which may take ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while (stats := measure.channel(nsqd)).depth + stats.in_flight_count and time.monotonic() < deadline:
        time.sleep(measure.POLL)
    counts = {
        "depth": stats.depth,
        "in flight": stats.in_flight_count,
        "requeued": stats.requeue_count,
        "timed out": stats.timeout_count,
        "not finished": messages - sum(c.finish_count for c in stats.clients or []),
    }
    return ", ".join(f"{what} {n}" for what, n in counts.items() if n)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.consume", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="how many messages, times the usual number")
    parser.add_argument("--clients", nargs="+", choices=peers.NSQ, default=peers.NSQ)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
