"""Numbers that a collector tells in files of its folder, for those who delete what was read. What they mean is said elsewhere."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

REMEMBER = "remember"
"""For how many seconds the ids of what was landed are needed: see ``Spool``."""


def tell(folder: Path, name: str, number: int | None) -> None:
    """In place of what was told before; None for nothing any more. Raises OSError."""
    if number is None:
        (folder / name).unlink(missing_ok=True)
    elif told(folder, name) != number:
        fresh = folder / f"{uuid4().hex}.tmp"
        fresh.write_text(f"{number}\n")
        os.replace(fresh, folder / name)


def told(folder: Path, name: str) -> int | None:
    """None where nothing was."""
    with suppress(FileNotFoundError, ValueError):
        return int((folder / name).read_text())
    return None
