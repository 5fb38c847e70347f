"""How long messages wait where a handler has more nsqds than it may have messages in flight, so that these take turns.

By default twenty real nsqds, max_in_flight 1, and on each nsqd one message every 5 seconds or so, each at its own time.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import measure, peers
from benchmarks.latency import at
from framework.testing import servers

INTERVAL = 5.0
"""Seconds between two messages on one nsqd, on average."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    times = sorted(run(options.nsqds, options.seconds))
    print(f"publish -> handler, {options.nsqds} nsqds, max_in_flight 1, a message every {INTERVAL:g} s on each, seconds")
    print(f"  n {len(times)}  p50 {at(times, 0.5):.2f}  p99 {at(times, 0.99):.2f}  worst {times[-1]:.2f}")


def run(nsqds: int, seconds: float) -> list[float]:
    """Seconds of each message; the first tenth, while connections settle, is left out."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started = [stack.enter_context(servers.running(_nsqd(folder / str(n)))) for n in range(nsqds)]
        for nsqd in started:
            measure.create(nsqd)
        addresses = ",".join(nsqd.address for nsqd in started)
        client = peers.start("ours", "crowd", addresses, stdout=subprocess.PIPE)
        stack.callback(peers.stop, client)
        stack.callback(peers.stop, peers.start("pace", str(nsqds / INTERVAL), addresses))
        assert client.stdout is not None
        times = [float(client.stdout.readline()) / 1e3 for _ in range(int(nsqds * seconds / INTERVAL))]
        return times[len(times) // 10 :]


def _nsqd(folder: Path) -> servers.Server:
    folder.mkdir()
    return servers.real_nsqd(folder, "--log-level=error")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd", description=__doc__)
    parser.add_argument("--nsqds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
