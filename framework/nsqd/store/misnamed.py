"""Segments under another's name: somebody moved or copied files of the log. Each says in its first record which one it is.

Read as what its name says, such a segment would be taken for one that is indexed already, and lose what is not. It gets its own
name again; where the log has that segment already, it is a copy, and set aside. So is a file that is no segment, neither by
what it says nor by its name.
"""

from __future__ import annotations

import time
from itertools import chain, count
from pathlib import Path

from framework.nsqd.store import record
from framework.nsqd.store.files import make_folder, naming, sync_folder
from framework.nsqd.store.segments import number_of

_MOVING = ".moving"
"""Behind the number that a file is about to get. Names are given in two steps, as two segments may have each other's."""
_OPENING_BYTES = 512


def look(log: Path, salt: int) -> tuple[dict[int, Path], list[str]]:
    """Number -> the segment that ``put_back`` would give it to; and what is wrong. Nothing is renamed. Raises OSError."""
    said = _said(log, salt)
    owners = _owners(log, said)
    wrong = [f"segment {number} of the log is named {path.name}" for number, path in owners.items() if path != _path(log, number)]
    return owners, wrong + [f"{path.name} is {_what(said[path])}" for path in sorted(said.keys() - owners.values())]


def put_back(log: Path, salt: int) -> list[str]:
    """Give the segments of the folder their own names; returns what was done. Raises OSError; the next call does the rest."""
    said = _said(log, salt)
    owners = _owners(log, said)
    reports = [_set_aside(log, path, said[path]) for path in sorted(said.keys() - owners.values())]
    wrong = {number: path for number, path in owners.items() if path != _path(log, number)}
    # Those that do not say their number first: they are where the one is that has their name.
    for number, path in sorted(wrong.items(), key=lambda one: said[one[1]] is not None):
        if path.suffix != _MOVING:
            path.rename(_path(log, number).with_suffix(_MOVING))
        reports.append(f"segment {number} of the log was named {path.name}: it has its own name again")
    for number in wrong:
        _path(log, number).with_suffix(_MOVING).rename(_path(log, number))
    if wrong:
        sync_folder(log)
    return reports


def _said(log: Path, salt: int) -> dict[Path, int | None]:
    return {path: _number(path, salt) for path in (*log.glob("*.log"), *log.glob(f"*{_MOVING}"))}


def _number(path: Path, salt: int) -> int | None:
    """Which segment it is; None where that is not known."""
    if path.suffix == _MOVING:
        return int(path.stem)
    with naming(path), open(path, "rb") as file:
        return record.opened(file.read(_OPENING_BYTES), salt)


def _owners(log: Path, said: dict[Path, int | None]) -> dict[int, Path]:
    """Number -> the segment that shall have it in its name."""
    owners = {own: path for path, own in said.items() if own is not None and path == _path(log, own)}
    for path in sorted(said, key=lambda one: -one.stat().st_size):  # of two copies the one that was written longer
        if (own := said[path]) is not None:
            owners.setdefault(own, path)
    named = {path: number for path in said if (number := number_of(path)) is not None}
    silent = [path for path in named if said[path] is None]
    exchanged = [path for path in silent if owners.setdefault(named[path], path) is not path]
    free = sorted(set(named.values()) - owners.keys())
    return owners | dict(zip(chain(free, count(max(owners, default=0) + 1)), exchanged, strict=False))


def _set_aside(log: Path, path: Path, own: int | None) -> str:
    bad = log.parent / "bad"
    make_folder(bad)
    kept = path.rename(bad / f"{time.time_ns()}-{path.name}")
    for folder in (log, bad):
        sync_folder(folder)
    return f"{path.name} is {_what(own)}: set aside in {kept}"


def _what(own: int | None) -> str:
    return "no segment of the log" if own is None else f"a copy of segment {own} of the log, which is there"


def _path(log: Path, number: int) -> Path:
    return log / f"{number:010}.log"
