"""The demo's figures, counted from the Parquet files that lie there: what the summary and the report say is what was kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from workers.api_requests.detect.spam import suspects
from workers.api_requests.detect.spam.verdict import Suspect

_EXAMPLES = 3  # for each reason of rejection
_EXAMPLE_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Period:
    """An hour or a day."""

    start: datetime | date
    requests: int
    addresses: int
    new_addresses: int
    change: float | None = None
    """From the day before, as a share."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """One reason, how many lines, and how some of them began."""

    reason: str
    lines: int
    examples: list[str]


@dataclass(slots=True)
class Figures:
    """All that the summary, the charts and the report show."""

    source: str
    input_lines: int
    published: int
    refused: Mapping[str, int]
    archived: int
    rejected: int
    addresses: int
    by_hour: list[Period]
    by_day: list[Period]
    by_status: dict[str, int]
    rejects: list[Rejected]
    suspects: list[Suspect]
    activity: list[tuple[datetime, str, int]]
    """hour, suspect's address, requests."""
    ledger: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    phases: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """From and to, in seconds after the start."""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def contradictions(self) -> list[str]:
        """What cannot be if no line was lost and none was counted twice; empty when all is well."""
        counted = sum(day.requests for day in self.by_day)
        checks = {
            f"{self.archived:,} archived + {self.rejected:,} rejected are not {self.published:,} published":
                self.archived + self.rejected == self.published,
            f"growth counted {counted:,} requests, {self.archived:,} are archived": counted == self.archived,
        }  # fmt: skip
        return [words for words, holds in checks.items() if not holds]

    def summary(self) -> dict[str, Any]:
        """summary.json."""
        return {
            "input_lines": self.input_lines,
            "published": self.published,
            "refused": dict(self.refused),
            "archived": self.archived,
            "rejected": self.rejected,
            "addresses": self.addresses,
            "by_day": {str(day.start): _counts(day) for day in self.by_day},
            "by_status": self.by_status,
            "rejected_by_reason": {one.reason: one.lines for one in self.rejects},
            "spam": [_suspect(one) for one in self.suspects],
            "ledger": {name: dict(ends) for name, ends in self.ledger.items()},
            "phases": {name: round(end - start, 2) for name, (start, end) in self.phases.items()},
            "seconds": round(self.seconds, 2),
            "input": self.source,
            "notes": self.notes,
        }


def read(output: Path, *, source: str, published: Mapping[str, int]) -> Figures:
    """From the Parquet files in ``output`` and what ``workers publish --summary`` wrote."""
    archive = _columns(output / "archive", ["address", "status"])
    statuses = archive.group_by("status").aggregate([([], "count_all")]).sort_by("status") if archive.num_rows else None
    rejects = _rejects(output / "rejected")
    return Figures(
        source=source,
        input_lines=published["input_lines"],
        published=published["published"],
        refused={kind: published.get(kind, 0) for kind in ("empty", "oversized", "unreadable")},
        archived=archive.num_rows,
        rejected=sum(one.lines for one in rejects),
        addresses=pc.count_distinct(archive["address"]).as_py() if archive.num_rows else 0,
        by_hour=_periods(output / "growth" / "by_hour.parquet", "hour"),
        by_day=_periods(output / "growth" / "by_day.parquet", "date"),
        by_status={str(row["status"]): row["count_all"] for row in statuses.to_pylist()} if statuses else {},
        rejects=rejects,
        suspects=suspects.read(output / "spam" / "suspects.parquet"),
        activity=_activity(output / "spam" / "activity.parquet"),
    )


def _columns(folder: Path, columns: list[str]) -> pa.Table:
    table = ds.dataset(folder, format="parquet")
    return table.to_table(columns=columns) if table.files else pa.table({name: [] for name in columns})


def _rejects(folder: Path) -> list[Rejected]:
    table = _columns(folder, ["reason", "raw"])
    found: dict[str, tuple[int, list[str]]] = {}
    for reason in pc.value_counts(table["reason"]).to_pylist() if table.num_rows else []:
        some = table.filter(pc.equal(table["reason"], reason["values"]))["raw"]
        different = list(dict.fromkeys(_shown(raw) for raw in some.slice(0, 500).to_pylist()))
        found[reason["values"]] = reason["counts"], different[:_EXAMPLES]
    return [Rejected(reason, *rest) for reason, rest in sorted(found.items(), key=lambda item: -item[1][0])]


def _shown(raw: bytes) -> str:
    text = printable(raw.decode(errors="backslashreplace").strip("\r\n"))
    return text if len(text) <= _EXAMPLE_CHARACTERS else text[:_EXAMPLE_CHARACTERS] + " ..."


def printable(text: str) -> str:
    """With an escape in place of what a log may hold and nobody should be shown: NUL, a turn of the writing direction."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _periods(file: Path, name: str) -> list[Period]:
    if not file.exists():
        return []
    rows = pq.read_table(file).to_pylist()
    return [Period(row[name], row["requests"], row["addresses"], row["new_addresses"], row.get("change")) for row in rows]


def _activity(file: Path) -> list[tuple[datetime, str, int]]:
    if not file.exists():
        return []
    return [(row["hour"], row["address"], row["requests"]) for row in pq.read_table(file).to_pylist()]


def _counts(period: Period) -> dict[str, int]:
    return {"requests": period.requests, "addresses": period.addresses, "new_addresses": period.new_addresses}


def _suspect(one: Suspect) -> dict[str, Any]:
    return {
        "address": one.address,
        "first_seen": _iso(one.first_seen),
        "last_seen": _iso(one.last_seen),
        "requests": one.requests,
        "reasons": list(one.reasons),
        "score": one.score,
    }


def _iso(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")
