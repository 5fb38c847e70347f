"""Whether a log was written with the salt that ``meta.json`` says. With another one each of its records would be taken for a
damaged one, and all of its messages for lost. It changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from framework.nsqd.store import record
from framework.nsqd.store.files import naming
from framework.nsqd.store.formats import FolderUnusable

_LOOK_BYTES = 1 << 20


def check(path: Path, salt: int) -> None:
    """Raises FolderUnusable where the log of the folder has another salt, OSError."""
    others: list[int] = []
    for segment in sorted((path / "log").glob("*.log")):
        with naming(segment), open(segment, "rb") as file:
            data = file.read(_LOOK_BYTES)
        if record.decode(data, 0, salt) is not None:
            return
        if (other := _salt(data)) is not None:
            others.append(other)
    if others:
        raise FolderUnusable(
            f"{path / 'meta.json'} says salt {salt}, its log was written with {others[0]}: one of them is of another folder, or "
            "meta.json is damaged; put it back from a copy, or write that number into it. Nothing was changed"
        )


def _salt(data: bytes) -> int | None:
    """With which the first two records are right; None where there is none. That damage made them so is as good as impossible."""
    first = record.salted(data, 0)
    second = None if first is None else record.salted(data, first[1])
    return first[0] if first is not None and second is not None and first[0] == second[0] else None
