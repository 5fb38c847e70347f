"""How fast a handler that does nothing consumes from a real nsqd: 200 bytes a message, 2,500 in flight, one connection.

With --connections ours has several, all to one nsqd, at as many addresses of the loopback network: a hundred nsqds would take
from two cores what is to be measured.

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

MESSAGES = {
    "ours": 1_000_000,
    "ours-admin": 1_000_000,
    "ours-history": 1_000_000,
    "bare-loop": 1_000_000,
    "go-nsq": 250_000,
    "nsq-py": 1_000_000,
    "gnsq": 100_000,
    "pynsq": 60_000,
}
"""About three to six seconds for each."""
MOST_BYTES = 1 << 30
"""How much nsqd is given to keep in memory: of large bodies there are fewer."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    cases = {f"{name} x{n}" if n > 1 else name: (name, n) for name in options.clients for n in options.connections}
    rounds: dict[str, list[measure.Result]] = {case: [] for case in cases}
    body = measure.BODY if options.body is None else b"x" * options.body
    for n in range(options.rounds):
        for case, (name, connections) in cases.items():
            print(f"consume: round {n + 1} of {options.rounds}, {case}", file=sys.stderr)
            messages = min(int(MESSAGES[name] * options.scale), MOST_BYTES // len(body))
            rounds[case].append(run(name, messages, connections=connections, body=body))
    print(measure.table(f"consume, {len(body)} bytes, {options.rounds} rounds, medians", rounds))


def run(name: str, messages: int, *, connections: int = 1, body: bytes = measure.BODY) -> measure.Result:
    with measure.fresh_nsqd(everywhere=connections > 1) as nsqd:
        return measured(nsqd, name, messages, connections=connections, body=body)


def measured(
    nsqd: servers.Server, name: str, messages: int, *, connections: int = 1, body: bytes = measure.BODY
) -> measure.Result:  # fmt: skip
    """Fill ``nsqd`` and have the client empty it."""
    measure.fill(nsqd, messages, body)
    addresses = [f"127.0.{n}.1:{nsqd.tcp_port}" for n in range(connections)] if connections > 1 else [nsqd.address]
    client = peers.start(name, "consume", ",".join(addresses))
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
    parser.add_argument("--clients", nargs="+", choices=MESSAGES, default=peers.NSQ)
    parser.add_argument("--connections", nargs="+", type=int, default=[1], metavar="N", help="1 to 250; more than 1: only ours")
    parser.add_argument("--body", type=int, metavar="BYTES", help="the size of a message, instead of 200")
    options = parser.parse_args(arguments)
    if any(n > 1 for n in options.connections) and options.clients != ["ours"]:
        parser.error("only ours takes several connections here: give --clients ours")
    if not all(1 <= n <= 250 for n in options.connections):
        parser.error("--connections takes numbers from 1 to 250")
    if options.body is not None and not 1 <= options.body <= 1_000_000:
        parser.error("--body takes 1 to 1000000 bytes, as nsqd does by default")
    return options


if __name__ == "__main__":
    main()
