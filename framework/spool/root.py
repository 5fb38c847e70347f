"""A spool's folder as those see it who read it: its epoch, and who collects into it. It needs neither gevent nor a broker."""

from __future__ import annotations

import os
import re
from pathlib import Path
from uuid import uuid4

from framework.errors import WrongUse
from framework.spool.segment import sync_folder

EPOCH = "epoch"
COLLECTOR = re.compile(r"[a-zA-Z0-9_-][.a-zA-Z0-9_-]{0,63}")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")  # also dbfs:/folder; one letter alone is a drive


def folder_of(given: str | os.PathLike[str]) -> Path:
    """The spool's folder. Raises WrongUse for a URL, of which a folder named ``s3:`` would be made."""
    if _URL.match(os.fspath(given)):
        raise WrongUse(
            f"a spool is a folder of a mounted file system, and {os.fspath(given)!r} is a URL: "
            "give a path; object stores are not supported"
        )
    return Path(given)


def ensure_epoch(root: Path) -> str:
    """The UUID of this life of the spool; the first process that comes makes it, durably."""
    known = epoch(root)
    if known is not None:
        return known
    root.mkdir(parents=True, exist_ok=True)
    fresh = root / f"{uuid4().hex}.tmp"
    try:
        with fresh.open("x") as file:
            file.write(f"{uuid4()}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(fresh, root / EPOCH)
        except FileExistsError:
            pass
    finally:
        fresh.unlink(missing_ok=True)
    sync_folder(root)
    return (root / EPOCH).read_text().strip()


def epoch(root: Path) -> str | None:
    """The spool's epoch; None when there is no spool yet."""
    try:
        return (root / EPOCH).read_text().strip()
    except FileNotFoundError:
        return None


def collectors(root: Path) -> list[str]:
    """The names of the collectors that have a folder in the spool, sorted."""
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if COLLECTOR.fullmatch(entry.name) and entry.is_dir())
    except FileNotFoundError:
        return []
