"""How long a message takes from publish to handler, at a steady rate, on a real nsqd, each client with its default settings.

The publisher is a bare socket in a process of its own; a body is the time at which it was sent. The handler's clock is the same.
The bare loop takes one message at a time, so that nsqd never keeps one back: what it waits is this machine's and nsqd's.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Sequence

from benchmarks import measure, peers
from framework.testing import servers

SAMPLES = {5: 60, 500: 3000}
"""Messages a second -> how many are timed; the first tenth, while connections settle, is left out."""
CLIENTS = ("ours", "bare-loop", "go-nsq", "nsq-py", "gnsq")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    for rate in options.rates:
        print(f"publish -> handler, {rate} messages a second, milliseconds")
        print(f"  {'client':<11} {'p50':>8} {'p99':>8} {'worst':>8}")
        for name in options.clients:
            times = sorted(run(name, rate, options.samples or SAMPLES.get(rate, 5 * rate)))
            print(f"  {name:<11} {at(times, 0.5):8.2f} {at(times, 0.99):8.2f} {times[-1]:8.2f}", flush=True)


def run(name: str, rate: int, samples: int) -> list[float]:
    """Milliseconds of each message."""
    with measure.fresh_nsqd() as nsqd:
        return measured(nsqd, name, rate, samples)


def measured(nsqd: servers.Server, name: str, rate: int, samples: int) -> list[float]:
    """Likewise, through ``nsqd``."""
    measure.create(nsqd)
    client = peers.start(name, "latency", nsqd.address, stdout=subprocess.PIPE)
    pace = peers.start("pace", str(rate), nsqd.address)
    try:
        assert client.stdout is not None
        times = [float(client.stdout.readline()) for _ in range(samples)]
    finally:
        peers.stop(pace)
        peers.stop(client)
    return times[samples // 10 :]


def at(times: Sequence[float], part: float) -> float:
    """The time that ``part`` of them, which are sorted, do not exceed."""
    return times[min(len(times) - 1, int(len(times) * part))]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=list(SAMPLES), help="messages a second")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS)
    parser.add_argument("--samples", type=int, help="how many messages are timed, instead of 60 at 5 a second, 3000 at 500")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
