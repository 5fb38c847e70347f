"""The salt that a log was written with, as its records tell it, whatever ``meta.json`` says. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from framework.nsqd.store import record
from framework.nsqd.store.files import naming

_LOOK_BYTES = 1 << 20


def of_log(path: Path) -> int | None:
    """That of the folder's log; None where it cannot be told. Raises OSError."""
    return next((salt for data in _beginnings(path) if (salt := _salt(data)) is not None), None)


def fits(path: Path, salt: int) -> bool:
    """Whether a segment of the folder's log begins with a record that is right with it."""
    return any(record.decode(data, 0, salt) is not None for data in _beginnings(path))


def _beginnings(path: Path) -> Iterator[bytes]:
    for segment in sorted((path / "log").glob("*.log")):
        with naming(segment), open(segment, "rb") as file:
            data = file.read(_LOOK_BYTES)
        yield data


def _salt(data: bytes) -> int | None:
    """With which the first two records are right; None where there is none. That damage made them so is as good as impossible."""
    first = record.salted(data, 0)
    if first is None:
        return None
    second = record.salted(data, first[1])
    return first[0] if second is not None and second[0] == first[0] else None
