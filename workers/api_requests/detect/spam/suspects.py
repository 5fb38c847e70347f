"""The list of suspects as others see it: ``suspects.parquet``, and the messages that tell of them. No Spark here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from workers.api_requests.detect.spam.verdict import Suspect

_TIME = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        ("address", pa.string()),
        ("first_seen", _TIME),
        ("last_seen", _TIME),
        ("requests", pa.int64()),
        ("score", pa.int64()),
        ("reasons", pa.list_(pa.string())),
    ]
)


def read(file: Path | pa.NativeFile) -> list[Suspect]:
    """The suspects in a ``suspects.parquet``; none while there is no such path."""
    if isinstance(file, Path) and not file.exists():
        return []
    return [Suspect(**row) for row in pq.read_table(file).to_pylist()]


def table(suspects: Sequence[Suspect]) -> pa.Table:
    """Of a ``suspects.parquet``."""
    rows = [{name: getattr(one, name) for name in _SCHEMA.names} for one in suspects]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def message(one: Suspect) -> str:
    """What is published of a suspect, as JSON."""
    return json.dumps(
        {
            "address": one.address,
            "first_seen": _iso(one.first_seen),
            "last_seen": _iso(one.last_seen),
            "requests": one.requests,
            "reasons": one.reasons,
        }
    )


def _iso(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")
