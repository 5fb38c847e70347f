"""The state of a worker at one moment, as plain values that go through JSON; several of them made into one. It reads no engine.

Everything that is shown (metrics, the API, the page) is made of a snapshot, so it is the same for one process and for many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from framework.engine.ledger import OUTCOMES
from framework.engine.times import RUNNING, WAITING

if TYPE_CHECKING:
    from framework.admin.fresh import Breathe

Snapshot = dict[str, Any]
"""``at``: seconds since 1970. ``processes``, ``handlers``, ``running``, ``failures``, ``connections``: lists of dicts.

A row of ``processes``: pid, host, version, started (seconds since 1970), state (starting, ready, draining), blocked (seconds
since the hub turned), stuck and unready (sentences), cpu (seconds), memory (bytes).

A row of ``handlers``: handler, topic, channel, slots, processes (how many run it), concurrency, max_in_flight, timeout, batch;
running, waiting (come and not started), in_flight; counts (of the ledger, as in ``OUTCOMES`` and received); rate (a second, by
outcome) over rate_seconds; failures (calls); since the start calls, busy (seconds), slow and waits (by bucket), waited (seconds);
recent_calls and recent_waits: such buckets, of the last seconds; took and waited_for: {p50, p99} in seconds of these, or None;
pause: None, or {by, until (seconds since 1970, or None), why, processes}; connected, wanted (nodes); stalled (seconds); started
(when the message that was started last had been published); published (topic -> messages).

A row of ``running``: handler, id, attempt, node, messages, since (seconds), where, slot, pid. Of ``failures``: handler, at, id,
attempt, node, messages, error, where, became, pid. Of ``connections``: handler, topic, node, granted (RDY), in_flight, unsent
(bytes), pid, away (why the node cannot be reached now, or empty).
"""

MOST = 200
"""Rows of ``running`` and of ``failures`` in a snapshot: the oldest calls, the latest failures, see ``most``."""

Row = TypeVar("Row")


class Source(Protocol):
    """What the admin endpoint serves: one process, or a master's children."""

    def snapshot(self, breathe: Breathe) -> Snapshot:
        """As of now, or of half a second ago. Does not wait for a hub that is blocked. ``breathe`` is called again and again."""

    def health(self) -> list[dict[str, Any]]:
        """``stuck`` and ``unready`` of each process, as its row has them: nothing that takes long with a thousand handlers."""

    def act(self, command: Mapping[str, Any]) -> None:
        """Do what ``command`` says, as ``actions.checked`` made it, soon. Raises WrongUse, in a sentence that says why not."""


CALLED = ("finished", "requeued", "dead")
"""The outcomes of messages that had a call, most of them."""
_SUMS = ("processes", "concurrency", "max_in_flight", "running", "waiting", "in_flight", "failures", "calls", "busy", "waited",
         "connected", "wanted")  # fmt: skip
_MOST = ("stalled", "started", "rate_seconds")
_BUCKETS = ("slow", "waits", "recent_calls", "recent_waits")


def at_once() -> None:
    """A ``Breathe`` for who serves nobody beside it."""


def merged(snapshots: Sequence[Snapshot], breathe: Breathe = at_once) -> Snapshot:
    """That of several processes: rows of the same handler are added up, all others stand side by side."""
    handlers: dict[str, dict[str, Any]] = {}
    for one in snapshots:
        for row in one["handlers"]:
            breathe()
            known = handlers.get(row["handler"])
            handlers[row["handler"]] = row if known is None else _sum(known, row)
    return {
        "at": max((one["at"] for one in snapshots), default=0.0),
        "processes": [row for one in snapshots for row in one["processes"]],
        "handlers": list(handlers.values()),
        "running": most((row for one in snapshots for row in one["running"]), _handler, _since),
        "failures": most((row for one in snapshots for row in one["failures"]), _handler, _latest),
        "connections": [row for one in snapshots for row in one["connections"]],
    }


def most(rows: Iterable[Row], handler: Callable[[Row], str], key: Callable[[Row], float]) -> list[Row]:
    """``MOST`` of ``rows``, in the order of ``key``: the first of each handler, then the second of each, and so on.

    So a handler that has hundreds hides no other's."""
    earlier: Counter[str] = Counter()
    ranked = []
    for row in sorted(rows, key=key):
        name = handler(row)
        ranked.append((earlier[name], row))
        earlier[name] += 1
    return sorted((row for _, row in sorted(ranked, key=itemgetter(0))[:MOST]), key=key)


_handler = itemgetter("handler")


def left_over(snapshot: Snapshot) -> Snapshot:
    """What is left of processes that have ended: their counters, which must never fall, and their failures."""
    return {
        "at": snapshot["at"], "processes": [], "running": [], "connections": [], "failures": snapshot["failures"],
        "handlers": [_ended(row) for row in snapshot["handlers"]],
    }  # fmt: skip


def of_books(
    snapshot: Snapshot | None, ledgers: Mapping[str, Mapping[str, int]], published: Mapping[str, Mapping[str, int]]
) -> Snapshot:
    """The last ``snapshot`` of a process that has ended, with what ``ledgers`` know beyond it: nobody may have looked."""
    made = snapshot or {"at": 0.0, "processes": [], "handlers": [], "running": [], "failures": [], "connections": []}
    rows = {row["handler"]: row for row in made["handlers"]}
    for name, ledger in ledgers.items():
        row, counts = rows.get(name) or _blank(name), {**dict.fromkeys(OUTCOMES, 0), **ledger}
        if (counts["received"], counts["finished"]) >= (row["counts"]["received"], row["counts"]["finished"]):
            calls = max(row["calls"], sum(counts[one] for one in CALLED)) if not row["batch"] else row["calls"]
            row = {**row, "counts": counts, "calls": calls}
        rows[name] = {**row, "published": {**row["published"], **published.get(name, {})}}
    return {**made, "handlers": list(rows.values())}


def _blank(name: str) -> dict[str, Any]:
    """The row of a handler of which nothing is known but its counts."""
    topic, _, channel = name.partition("/")
    return {
        "handler": name, "topic": topic, "channel": channel, "slots": "", "timeout": 0.0, "batch": None, "pause": None,
        "counts": {"received": 0, **dict.fromkeys(OUTCOMES, 0)}, "published": {}, "rate": {},
        **dict.fromkeys((*_SUMS, *_MOST), 0), "slow": [0] * (len(RUNNING) + 1), "waits": [0] * (len(WAITING) + 1),
        "recent_calls": None, "recent_waits": None, "took": None, "waited_for": None,
    }  # fmt: skip


def percentiles(bounds: Sequence[float], buckets: Sequence[int] | None) -> dict[str, float] | None:
    """p50 and p99 of what was counted into ``buckets``, in seconds, as far as the bounds tell; None of nothing."""
    if not buckets or not (count := sum(buckets)):
        return None
    ends = list(accumulate(buckets))
    return {name: _at(bounds, buckets, ends, part * count) for name, part in (("p50", 0.5), ("p99", 0.99))}


def _at(bounds: Sequence[float], buckets: Sequence[int], ends: Sequence[int], rank: float) -> float:
    index = next(index for index, end in enumerate(ends) if end >= rank)
    low = bounds[index - 1] if index else 0.0
    high = bounds[min(index, len(bounds) - 1)]
    return round(low + (high - low) * (rank - (ends[index] - buckets[index])) / buckets[index], 6)


def in_words(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is reckoned from the counts of a handler's row."""
    return {"took": percentiles(RUNNING, row["recent_calls"]), "waited_for": percentiles(WAITING, row["recent_waits"])}


def _sum(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    made = {**other, **one}
    made |= {name: one[name] + other[name] for name in _SUMS}
    made |= {name: max(one[name], other[name]) for name in _MOST}
    made |= {name: _added(one[name], other[name]) for name in _BUCKETS}
    for name in ("counts", "rate", "published"):
        made[name] = {key: one[name].get(key, 0) + other[name].get(key, 0) for key in {**one[name], **other[name]}}
    made["pause"] = _pause(one["pause"], other["pause"])
    return made | in_words(made)


def _added(one: Sequence[int] | None, other: Sequence[int] | None) -> Sequence[int] | None:
    if one is None or other is None:
        return one or other
    return [a + b for a, b in zip(one, other, strict=True)]


def _pause(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any] | None:
    """The one that lasts longer, and of how many processes there is one."""
    if one is None or other is None:
        return one or other
    longest = max(one, other, key=lambda pause: pause["until"] or float("inf"))
    return {**longest, "processes": one["processes"] + other["processes"]}


def _ended(row: Mapping[str, Any]) -> dict[str, Any]:
    gauges = ("processes", "concurrency", "max_in_flight", "running", "waiting", "in_flight", "connected", "wanted", "stalled")
    lost = row["counts"]["received"] - sum(row["counts"][name] for name in OUTCOMES)
    return {
        **row, **dict.fromkeys(gauges, 0), "rate": {}, "rate_seconds": 0.0, "pause": None, "recent_calls": None,
        "recent_waits": None, "took": None, "waited_for": None,
        "counts": {**row["counts"], "lease_lost": row["counts"]["lease_lost"] + max(0, lost)},
    }  # fmt: skip


def _since(row: Mapping[str, Any]) -> float:
    return -float(row["since"])


def _latest(row: Mapping[str, Any]) -> float:
    return -float(row["at"])


def rows_of(snapshot: Snapshot, kind: str, handler: str = "") -> Iterable[dict[str, Any]]:
    """The rows of ``kind``, those of one handler where it is named."""
    return (row for row in snapshot[kind] if not handler or row["handler"] == handler)
