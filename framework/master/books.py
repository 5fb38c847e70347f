"""The ledgers of several processes, added up; also of one that was killed and could not say its last."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from framework.engine.ledger import OUTCOMES
from framework.settings import write_at_end

log = logging.getLogger(__name__)

Books = dict[str, dict[str, int]]
"""Handler -> what is counted -> how often: of ledgers the outcomes, of what was published the topics."""


def total(each: Iterable[Mapping[str, Mapping[str, int]]]) -> Books:
    """The sum, in the order in which the names came first."""
    found: dict[str, Counter[str]] = {}
    for books in each:
        for name, counts in books.items():
            mine = found.setdefault(name, Counter())
            for key, count in counts.items():
                mine[key] += count
    return {name: dict(counts) for name, counts in found.items()}


def closed(ledgers: Mapping[str, Mapping[str, Any]]) -> Books:
    """As of the last report of a process that was killed: what was in flight is delivered again, so those leases were lost."""
    return {
        name: {**counts, "lease_lost": counts["lease_lost"] + counts["received"] - sum(counts.get(end, 0) for end in OUTCOMES)}
        for name, counts in ledgers.items()
    }


def of_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[Books, Books]:
    """The ledgers of the handlers in a snapshot, as ``Ledger.as_dict`` has them, and what they published."""
    kept = list(rows)
    ledgers = {row["handler"]: {key: count for key, count in row["counts"].items() if count or key != "lost"} for row in kept}
    return ledgers, {row["handler"]: row["published"] for row in kept if row["published"]}


def write(ledgers: Books, published: Books, file: Path | None) -> None:
    """The last of all processes has ended. ``file``: where ``--ledger`` has them."""
    if file is not None:
        write_at_end(file, "--ledger", json.dumps(ledgers, indent=2) + "\n")
    for name, counts in ledgers.items():
        log.info("ledger %s %s", name, " ".join(f"{key}={count}" for key, count in counts.items()))
    for name, stored in ((name, stored) for name, stored in published.items() if stored):
        log.info("published by %s %s", name, " ".join(f"{topic}={count}" for topic, count in sorted(stored.items())))
