"""How fast each client publishes 200-byte bodies to a real nsqd: one at a time, 100 at once, and 500 in one MPUB.

The topic is ephemeral and has no channel: nsqd counts what it took and keeps no more than fits its memory queue.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks import measure, peers

TOPIC = "bench#ephemeral"
JOBS = {"sync": "PUB, one at a time", "pipelined": "PUB, 100 at once", "mpub": "MPUB of 500"}
WARM_UP = 5_000  # messages
WINDOW = 3.0  # seconds


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    for job in options.jobs:
        rounds: dict[str, list[measure.Result]] = {name: [] for name in options.clients}
        for n in range(options.rounds):
            for name in options.clients:
                print(f"publish, {JOBS[job]}: round {n + 1} of {options.rounds}, {name}", file=sys.stderr)
                rounds[name].append(run(name, job))
        print(measure.table(f"publish, {JOBS[job]}, {options.rounds} rounds, medians", rounds))


def run(name: str, job: str) -> measure.Result:
    with measure.fresh_nsqd() as nsqd:
        client = peers.start(name, job, nsqd.address)
        try:
            figures = measure.window(nsqd, client, lambda: measure.published(nsqd, TOPIC), WARM_UP, sys.maxsize, longest=WINDOW)
            return measure.Result(*figures, fault="" if client.poll() is None else f"ended with {client.returncode}")
        finally:
            peers.stop(client)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--clients", nargs="+", choices=peers.NSQ, default=peers.NSQ)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
