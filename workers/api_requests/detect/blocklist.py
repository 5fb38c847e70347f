"""The block list: a small SQLite file of suspects, durable, and the same however often a suspect is told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from workers.api_requests.database import transaction

_TABLE = """
create table if not exists blocklist (
    address text primary key,
    first_seen text not null,
    last_seen text not null,
    requests integer not null,
    reasons text not null
) without rowid
"""
_PUT = """
insert into blocklist values (?, ?, ?, ?, ?)
on conflict (address) do update set
    first_seen = min(first_seen, excluded.first_seen),
    last_seen = excluded.last_seen, requests = excluded.requests, reasons = excluded.reasons
where excluded.last_seen > last_seen or (excluded.last_seen = last_seen and excluded.requests >= requests)
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One address on the list."""

    address: str
    first_seen: datetime
    last_seen: datetime
    requests: int
    reasons: tuple[str, ...]


class BlockList:
    """The list in the file ``path``, which is made with the first entry. Any number of processes may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, entry: Entry) -> None:
        """Add the entry or update it; one that is older than what is known changes nothing. Durable on return."""
        row = (entry.address, _text(entry.first_seen), _text(entry.last_seen), entry.requests, json.dumps(entry.reasons))
        with transaction(self._path, _TABLE) as database:
            database.execute(_PUT, row)

    def entries(self) -> list[Entry]:
        """All of them by address; none while there is no file."""
        if not self._path.exists():
            return []
        with transaction(self._path, _TABLE) as database:
            rows = database.execute("select address, first_seen, last_seen, requests, reasons from blocklist order by address")
            return [
                Entry(a, datetime.fromisoformat(f), datetime.fromisoformat(s), n, tuple(json.loads(r))) for a, f, s, n, r in rows
            ]


def _text(time: datetime) -> str:
    """In UTC, so that texts compare as times do."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")
