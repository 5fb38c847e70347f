"""The ledgers of several processes, added up; also of one that was killed and could not say its last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from framework.engine.ledger import OUTCOMES

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
