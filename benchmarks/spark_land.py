"""How many messages of 200 bytes a second a collector lands in a spool, from a real nsqd, with publishing beside it.

The collector is the one that ``format("nsq")`` has in it, in a process of its own. Counted are the rows of the spool's segments,
which are on the disk by then. Publishing is a bare loop of MPUBs, ``--rate`` messages a second, or as many as nsqd takes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import measure, peers
from framework.spark.lives import list_spool

CLIENTS = Path(__file__).parent / "clients"
WARM_UP = 20_000  # messages


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    rounds: dict[str, list[measure.Result]] = {f"{rate:,}/s": [] for rate in options.rates}
    for _ in range(options.rounds):
        for rate in options.rates:
            rounds[f"{rate:,}/s"].append(run(rate, options.seconds))
    print(
        measure.table(
            f"landed beside publishing of so many, {options.rounds} rounds, medians, load {os.getloadavg()[0]:.0f}", rounds
        )
    )


def run(rate: int, seconds: float) -> measure.Result:
    with ExitStack() as stack:
        spool = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "spool"
        nsqd = stack.enter_context(measure.fresh_nsqd())
        measure.create(nsqd)
        collector = stack.enter_context(_started("landing.py", nsqd.address, str(spool)))
        while not measure.channel(nsqd).clients:
            time.sleep(0.05)
        publisher = stack.enter_context(_started("steady.py", nsqd.address, str(rate)))

        def landed() -> int:
            return sum(one.rows for segments in list_spool(spool).values() for one in segments) if spool.exists() else 0

        figures = measure.window(nsqd, collector, landed, WARM_UP, sys.maxsize, longest=seconds)
        fault = "" if collector.poll() is None and publisher.poll() is None else "a process ended"
        return measure.Result(*figures, fault=fault)


@contextmanager
def _started(script: str, *arguments: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(peers.ROOT)}
    process = subprocess.Popen([sys.executable, str(CLIENTS / script), *arguments], env=environment)
    try:
        yield process
    finally:
        peers.stop(process)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_land", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", type=int, nargs="+", default=[50_000, 120_000, 1_000_000], metavar="MESSAGES")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the clock, for each run (5)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
