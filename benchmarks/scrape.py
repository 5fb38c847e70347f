"""What a scrape of /metrics costs: CPU to write the page, by how many handlers have made calls. Each counts 1,000 messages.

What brokers keep is left out: it is asked beside the scrape, and is one line for each handler and node.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from framework.admin.backlog import Backlog
from framework.admin.figures import Figures
from framework.engine.ledger import OUTCOMES
from framework.engine.times import RUNNING, WAITING

MESSAGES = 1000


class NotAsked(Backlog):
    """Of brokers that nobody asks."""

    def refresh(self, channels: object) -> None: ...


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    print(" handlers   page     CPU  for each handler")
    for handlers in options.handlers:
        size, seconds = cost(handlers, options.rounds)
        print(f"{handlers:9,} {size / 1024:4.0f} KiB {1000 * seconds:5.1f} ms {1000 * seconds / handlers:10.2f} ms", flush=True)


def cost(handlers: int, rounds: int) -> tuple[int, float]:
    """Bytes of the page, and seconds of CPU: the median of ``rounds``."""
    snapshot: Any = {"processes": [{"blocked": 0.0}], "handlers": [_row(number) for number in range(handlers)]}
    figures = Figures(lambda: snapshot, NotAsked(lambda: []))
    taken = []
    for _ in range(rounds + 1):  # the first warms up
        began = time.thread_time()
        page = figures.text()
        taken.append(time.thread_time() - began)
    return len(page), median(taken[1:])


def _row(number: int) -> dict[str, Any]:
    topic = f"topic{number}"
    counts = {"received": MESSAGES, **dict.fromkeys(OUTCOMES, 0), "finished": MESSAGES}
    return {
        "handler": f"{topic}/bench", "topic": topic, "channel": "bench", "processes": 1, "concurrency": 10, "max_in_flight": 1000,
        "running": 1, "counts": counts, "calls": MESSAGES, "busy": 1.5, "slow": [0, 7] + [0] * (len(RUNNING) - 1),
        "waits": [MESSAGES] + [0] * len(WAITING), "waited": 0.5, "pause": None, "connected": 1, "wanted": 1, "stalled": 0.0,
        "started": 0.0, "published": {"invoices": MESSAGES},
    }  # fmt: skip


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--handlers", nargs="+", type=int, default=[1, 10, 100, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
