"""The segments in a folder of a mounted file system: files that are durable before their names can be seen.

A segment's name is its number and its row count, ``00000000000000000042-2500.arrow``, so that planning a read opens no file.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

from framework.errors import WrongUse
from framework.spool import arrow, runs
from framework.spool.arrow import Segment, SpoolError
from framework.spool.faults import check_is_file
from framework.spool.storage import Location

_NAME = re.compile(rf"{arrow.NUMBER}-([0-9]{{1,18}})\.arrow")
_UNFINISHED = ".tmp"
_CLAIM = ".claim"
_CLAIM_NAME = re.compile(rf"{arrow.NUMBER}\.claim")
_LOCK = "lock"


def write(folder: Path, number: int, rows: Any, *, only: bool = False) -> Segment | None:
    """Make ``rows`` durable as segment ``number`` of ``folder``, or as the next number that is free.

    ``only``: with this number or not at all; None where another writer has it. On return the file and its name survive a power
    cut. Raises OSError; then no part of it can be seen.
    """
    fresh = folder / f"{uuid4().hex}{_UNFINISHED}"
    try:
        _write_and_sync(fresh, rows)
        segment = _name(fresh, folder, number, rows.num_rows, only)
    finally:
        fresh.unlink(missing_ok=True)
    if segment is not None:
        sync_folder(folder)
    return segment


def _write_and_sync(path: Path, rows: Any) -> None:
    with path.open("xb") as file:
        arrow.write_to(file, rows)
        file.flush()
        os.fsync(file.fileno())


def _name(fresh: Path, folder: Path, number: int, rows: int, only: bool) -> Segment | None:
    # A name holds the rows too, so that alone would let two writers take one number (where flock does nothing, as on some
    # network file systems). So a number is claimed first, by an exclusive link; a claim goes only once the folder has its
    # number or a later one, and its holder looks at the folder before it names anything. Not a rename: that replaces what
    # another writer has finished already, and both then finish their messages at the broker (measured: 1,000 of 2,000 lost).
    while True:
        arrow.check_number(number, folder)
        claim = folder / f"{number:020d}{_CLAIM}"
        try:
            os.link(fresh, claim)
        except FileExistsError:
            settle(claim)
        else:
            named = _name_claimed(fresh, folder, number, rows)
            claim.unlink(missing_ok=True)
            if named is not None:
                return named
        newest = _newest(folder)
        if only and newest >= number:
            return None
        number = max(number, newest + 1)


def _name_claimed(fresh: Path, folder: Path, number: int, rows: int) -> Segment | None:
    """Name ``fresh``, whose number is claimed; None where a segment of this number, or a later one, is there already."""
    path = folder / f"{number:020d}-{rows}.arrow"
    if _newest(folder) < number:
        with suppress(FileExistsError):
            os.link(fresh, path)
    try:
        return Segment(number, rows, path) if path.samefile(fresh) else None  # another writer may have named it for us
    except FileNotFoundError:
        return None


def settle(claim: Path) -> None:
    """Finish what the holder of ``claim`` may have died over: its rows are durable, and the number must not become a gap."""
    held = claim.with_name(f"{uuid4().hex}{_UNFINISHED}")  # by this name the file stays the same, whoever claims next
    try:
        os.link(claim, held)
        _name_claimed(held, claim.parent, int(claim.name.partition(".")[0]), arrow.mapped(held).num_rows)
    except FileNotFoundError:  # its holder has finished
        return
    finally:
        held.unlink(missing_ok=True)
    claim.unlink(missing_ok=True)


def _newest(folder: Path) -> int:
    """The highest number in the folder; 0 when there is none."""
    last = max((name for name in os.listdir(folder) if _NAME.fullmatch(name)), default="0")
    return int(last.partition("-")[0])


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def listing(folder: Path) -> list[Segment]:
    """The segments of a collector's folder by number; empty when there is no such folder.

    Raises SpoolError when two files have one number, which no writer makes.
    """
    try:
        names = _names(folder)
    except FileNotFoundError:
        return []
    segments = runs.beside(_parsed(folder, names), filter(None, (runs.named(folder, name) for name in names)))
    for one, two in pairwise(segments):
        if one.number == two.number:
            raise SpoolError(
                f"spool {folder}: {one.path.name} and {two.path.name} have one number; "
                "remove the one that was copied here, or begin an empty folder"
            )
    return segments


def _names(folder: Path) -> list[str]:
    """Of one moment, as far as runs go: who stands still in the middle could see neither a run nor what it holds."""
    while True:
        began = time.monotonic()
        names = os.listdir(folder)
        if time.monotonic() - began <= max(1.0, runs.GRACE / 2):
            return names


def _parsed(folder: Path, names: Iterable[str]) -> Iterable[Segment]:
    for name in names:
        if match := _NAME.fullmatch(name):
            yield Segment(int(match[1]), int(match[2]), folder / name)


def write_run(folder: Path, name: str, rows: Any) -> None:
    """Make the run ``name``, durably; nothing where it is there. Raises OSError."""
    fresh = folder / f"{uuid4().hex}{_UNFINISHED}"
    try:
        _write_and_sync(fresh, rows)
        with suppress(FileExistsError):
            os.link(fresh, folder / name)
    finally:
        fresh.unlink(missing_ok=True)
    sync_folder(folder)


def _clock(folder: Path) -> float:
    """The time by what dates the files of ``folder``: another host, perhaps."""
    fresh = folder / f"{uuid4().hex}{_UNFINISHED}"
    try:
        fresh.touch()
        return fresh.stat().st_mtime
    finally:
        fresh.unlink(missing_ok=True)


def remove_held(folder: Path, until: float) -> bool:
    """Remove the segments that runs hold as well, and have for a while; whether that is done.

    It ends at ``until`` (monotonic). Raises OSError, and SpoolError for a run that does not hold them.
    """
    names, now = os.listdir(folder), _clock(folder)
    old = [name for name in names if runs.NAME.fullmatch(name) and (folder / name).stat().st_mtime <= now - runs.GRACE]
    for run in filter(None, (runs.named(folder, name) for name in old)):
        held = [one for one in _parsed(folder, names) if (one.number - 1) // runs.BLOCK == run.begins // runs.BLOCK]
        if held:
            numbers = arrow.mapped(folder / run.path.name)[runs.PLACE[0]]
            runs.check_held(run, numbers, {one.number: one.rows for one in held})
        for one in held:
            (folder / one.path.name).unlink(missing_ok=True)
            if time.monotonic() > until:
                return False
    return True


def recover(folder: Path, unfinished_for: float = 0.0) -> None:
    """Finish what a killed writer left durable, and remove what it left half done. For its collector, under its lock.

    ``unfinished_for``: seconds after which a file that is half done is taken for one that nobody finishes.
    """
    for path in folder.glob(f"*{_CLAIM}"):
        if _CLAIM_NAME.fullmatch(path.name):
            settle(path)
    # By what dates the files, as the lock was written just now: this host's clock may be ahead of it.
    before = (folder / _LOCK).stat().st_mtime - unfinished_for if unfinished_for else math.inf
    for path in folder.glob(f"*{_UNFINISHED}"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < before:
                path.unlink()


def locked(folder: Path, shared: bool) -> int:
    """A handle that holds the folder's lock for as long as it is open. Raises WrongUse where another process has it."""
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        check_is_file(folder / _LOCK)
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise WrongUse(
            f"spool {folder}: process {holder} is this collector already; give every process a collector name of its own, "
            "or say shared=True in all of them"
        ) from None
    except OSError:  # a file system without locks, or what is no file
        os.close(handle)
        raise
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle


def is_lock_of(handle: int, folder: Location) -> bool:
    """Whether ``handle``, which ``locked`` gave, locks ``folder`` yet: where that was emptied, others lock another file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(Path(str(folder)) / _LOCK))
    except OSError:  # what it is, who locks it anew is told
        return False
