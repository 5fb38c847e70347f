"""How many messages a second the engine itself handles: a handler that does nothing, the broker in memory, all in one process.

The whole runtime is on: @handler, Supervisor, slots, credit, leases, retry and dead letter policy, ledger. ``--publish`` has the
messages published meanwhile, by a greenlet of the same thread, in place of before. ``--profile`` prints where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Sequence

import gevent

from framework import Message, Publisher
from framework.engine.supervisor import Supervisor
from framework.handler import make_spec
from framework.transports import open_transports
from framework.transports.memory import forget

BODY = b"x" * 200
GOAL = 300_000


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(run, options.messages, meanwhile=options.publish)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    runs = [run(options.messages, meanwhile=options.publish) for _ in range(options.rounds)]
    rates = sorted(rate / 1e3 for rate, _ in runs)
    cpu = statistics.median(cpu for _, cpu in runs)
    when = "meanwhile" if options.publish else "before"
    print(f"memory, {options.rounds} rounds of {options.messages:,} messages that were published {when}:")
    print(f"  median {statistics.median(rates):.0f} k msg/s ({rates[0]:.0f} to {rates[-1]:.0f}; goal {GOAL / 1e3:.0f})")
    print(f"  {cpu:.2f} us of CPU a message")


def run(messages: int, *, meanwhile: bool) -> tuple[float, float]:
    """Messages a second, and microseconds of CPU a message, from the first to the last that was finished."""

    def nothing(message: Message) -> None:
        pass

    transports = open_transports(["memory://benchmark"])
    publisher = Publisher(transports)
    spec = make_spec(nothing, "bench", "bench", {"concurrency": 50, "max_in_flight": 2500})
    supervisor = Supervisor([spec], transports, publish=publisher.publish)
    ledger = supervisor.ledgers[spec.name]
    if not meanwhile:
        publisher.publish_many("bench", [BODY] * messages)
    running = gevent.spawn(supervisor.run)
    began = time.perf_counter(), time.process_time()
    if meanwhile:
        gevent.spawn(_publish, publisher, messages)
    while ledger.finished < messages:
        gevent.sleep(0.001)
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    supervisor.stop()
    running.get()
    assert ledger.as_dict() == {"received": messages, "finished": messages, "requeued": 0, "dead": 0, "lease_lost": 0}
    forget("benchmark")
    return messages / wall, cpu / messages * 1e6


def _publish(publisher: Publisher, messages: int, some: int = 500) -> None:
    for start in range(0, messages, some):
        publisher.publish_many("bench", [BODY] * min(some, messages - start))
        gevent.sleep(0)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--publish", action="store_true", help="publish while the messages are handled")
    parser.add_argument("--profile", action="store_true", help="one round under cProfile")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
