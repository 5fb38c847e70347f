"""The demo's output folder: begun anew each time, and never at the cost of somebody's files."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

from framework import WrongUse

_MARK = ".api-requests-demo"
RESULTS = ("archive", "rejected", "growth", "spam", "growth.png", "spam.png", "report.html", "summary.json", "blocklist.sqlite",
           "blocklist.sqlite-wal", "blocklist.sqlite-shm", ".job")  # fmt: skip
WORK = "work"
"""Logs, spools, the broker's data: what the run needs and nobody reads afterwards, unless something went wrong."""


_PATIENCE = 5.0
"""Seconds for which the processes of a demo that was killed are waited for; their job takes the longest, about three."""


def begin(folder: Path) -> int:
    """Make the folder, or empty one that a demo made; returns a handle whose lock ends with the last process that has it.

    Raises WrongUse, having changed nothing, for one that holds anything else or that another demo uses.
    """
    try:
        _refuse_foreign(folder)
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / _MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise WrongUse(f"--output {folder}: {error.strerror}: name a folder that you may write to") from error
    if not _locked(handle):
        os.close(handle)
        raise WrongUse(f"--output {folder}: another demo is at work there; wait for it, or name another folder")
    clear(folder)
    return handle


def _locked(handle: int) -> bool:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        else:
            return True


def clear(folder: Path) -> None:
    """Remove what a demo makes."""
    for name in (*RESULTS, WORK):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    (folder / WORK).mkdir()


def _refuse_foreign(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise WrongUse(f"--output {folder} is not a folder: name one, or one that does not exist yet")
    names = sorted(entry.name for entry in folder.iterdir())
    foreign = [name for name in names if name not in (*RESULTS, WORK, _MARK)] if _MARK in names else names
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise WrongUse(f"--output {folder} holds files that no demo made ({shown}): name an empty folder")
