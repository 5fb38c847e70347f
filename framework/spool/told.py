"""Numbers that a collector tells in files of its folder, for those who delete what was read. What they mean is said elsewhere."""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from uuid import uuid4

from framework.spool.faults import content_of
from framework.spool.storage import Location

BEGINS = "begins"
"""The number that a collector went on with whose folder was emptied while it lived; 1 where it says none."""
AFTER = "after"
"""``number_of`` the life of the folder that it had before, and went on from: somebody may have renamed it."""
REMEMBER = "remember"
"""For how many seconds the ids of what was landed are needed: see ``Spool``."""


def number_of(life: str) -> int:
    """Stands for a folder's life."""
    return int.from_bytes(blake2b(life.encode(), digest_size=8).digest(), "big")


def tell(folder: Location, name: str, number: int | None) -> None:
    """In place of what was told before; None for nothing any more. Raises OSError."""
    known = told(folder, name)
    if known == number:
        return
    if not isinstance(folder, Path):
        file = folder / name
        file.delete() if number is None else file.put(f"{number}\n".encode(), over=True)
    elif number is None:
        (folder / name).unlink(missing_ok=True)
    else:
        fresh = folder / f"{uuid4().hex}.tmp"
        try:
            fresh.write_text(f"{number}\n")
            os.replace(fresh, folder / name)
        finally:
            fresh.unlink(missing_ok=True)  # where a disk is full, a collector tries again with each batch


def told(folder: Location, name: str) -> int | None:
    """None where nothing was. Raises OSError."""
    file = folder / name
    with suppress(FileNotFoundError, ValueError):
        return int(content_of(file) if isinstance(file, Path) else bytes(file.read()))
    return None
