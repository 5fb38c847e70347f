"""The segments in a storage: objects whose names are their numbers, so that who puts a name exclusively has the number.

- ``00000000000000000042.arrow``: a segment, by one exclusive put: all of it is there, or nothing.
- ``00000000000000000042-2500-MARK.rows``: empty; says the rows of 42, so that planning a read opens nothing. It is a help only:
  whoever misses one, because its writer was killed, looks into the segment and puts it.
- A segment that was deleted leaves its mark alone under its name, for a day. Without it, a collector that was paused before its
  put could take a number that everybody has read already.
- ``floor``: a number under which there are no segments any more, so that a listing need not begin with what they left.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

from framework.spool import arrow
from framework.spool.arrow import MARK, Segment
from framework.spool.storage import Entry, Remote, StorageError
from framework.spool.told import tell, told

_log = logging.getLogger(__name__)
_NAME = re.compile(r"(\d{20})\.arrow")
_ROWS = re.compile(r"(\d{20})-(\d+)-([0-9a-f]{32})\.rows")
_MARK_BYTES = 32
_FLOOR = "floor"
_TAKEN_FOR = 86400.0
"""Seconds for which the number of a deleted segment stays taken, by the storage's clock."""
_TIDY_EVERY = 3600.0
_MANY_LEFT = 500
"""As many deleted segments in a listing are worth a look where it may begin by now."""

_floors: dict[Remote, int] = {}
_tidied: dict[Remote, float] = {}
_looked_into: dict[tuple[str, float], tuple[int, str]] = {}
"""(name, time) of a segment whose rows nobody had put -> what ``_look_into`` found."""


def write(folder: Remote, number: int, rows: Any) -> Segment | None:
    """Make ``rows`` segment ``number``; None where another writer has that number, or had it. Raises StorageError."""
    mark = uuid4().hex
    content = arrow.content_of(rows, mark)
    path = folder / f"{number:020d}.arrow"
    try:
        is_ours = path.put(content)
    except StorageError:
        # Its answer may be what was lost. If it is not there, it may still come: then it has the number, and whoever tries that
        # number next, this collector as well, learns its ids first.
        if not _is_there(path, mark, content.size):
            raise
        is_ours = True
    # What is taken may be ours as well: a library puts again when an answer is lost.
    if not is_ours and not _is_there(path, mark, content.size):
        return None
    _tell_rows(folder, number, rows.num_rows, mark)
    return Segment(number, rows.num_rows, path, content.size, None, mark)


def listing(folder: Remote) -> list[Segment]:
    """The segments by number; empty where there are none. Raises StorageError, and SpoolError for one that is damaged."""
    first = _floors.get(folder)
    if first is None:
        first = _floors[folder] = told(folder, _FLOOR) or 0
    found, left = _listed(folder, first)
    if not found and first:  # the last one is never deleted: this is another spool under the same name
        _floors.pop(folder, None)
        found, left = _listed(folder, 0)
    if left > _MANY_LEFT:
        _floors.pop(folder, None)
    return found


def read(path: Remote) -> Any:
    """The rows of a segment. Raises FileNotFoundError, also for one that was deleted, SpoolError and StorageError."""
    content = path.read()
    if len(content) == _MARK_BYTES:
        raise FileNotFoundError(f"{path} was deleted")
    return arrow.opened(content, path)


def remove(one: Segment) -> None:
    """Leave nothing of it but its mark, and nothing to read. Raises StorageError."""
    assert isinstance(one.path, Remote)
    one.path.put(one.mark.encode(), over=True)
    (one.path.parent / _rows_name(one.number, one.rows, one.mark)).delete()


def tidy(folder: Remote, floor: int) -> None:
    """Once all under ``floor`` are removed: let listings begin there, and forget the numbers that were removed long ago."""
    tell(folder, _FLOOR, floor)
    _floors[folder] = floor
    now = time.monotonic()
    if now < _tidied.get(folder, 0.0):
        return
    _tidied[folder] = now + _TIDY_EVERY
    entries = [entry for entry in folder.list() if entry.name[:20].isdigit()]
    latest = max((entry.modified for entry in entries), default=0.0)
    for entry in entries:
        if int(entry.name[:20]) < floor and entry.modified < latest - _TAKEN_FOR:
            (folder / entry.name).delete()


def _listed(folder: Remote, first: int) -> tuple[list[Segment], int]:
    """What is there from ``first`` on, and how many deleted ones are among it."""
    segments: dict[int, Entry] = {}
    rows: dict[int, tuple[int, str]] = {}
    left = 0
    for entry in folder.list(f"{first:020d}"):
        if match := _NAME.fullmatch(entry.name):
            if entry.size == _MARK_BYTES:
                left += 1
            else:
                segments[int(match[1])] = entry
        elif match := _ROWS.fullmatch(entry.name):
            rows[int(match[1])] = int(match[2]), match[3]
    found = []
    for number, entry in sorted(segments.items()):
        with suppress(FileNotFoundError):  # deleted just now
            count, mark = rows.get(number) or _look_into(folder, number, entry)
            found.append(Segment(number, count, folder / entry.name, entry.size, entry.modified, mark))
    return found, left


def _look_into(folder: Remote, number: int, entry: Entry) -> tuple[int, str]:
    path = folder / entry.name
    known = _looked_into.get((str(path), entry.modified))
    if known is None:
        table = read(path)
        known = table.num_rows, (table.schema.metadata or {}).get(MARK, b"0" * _MARK_BYTES).decode()
        _looked_into[str(path), entry.modified] = known
        _tell_rows(folder, number, *known)
    return known


def _tell_rows(folder: Remote, number: int, rows: int, mark: str) -> None:
    try:
        (folder / _rows_name(number, rows, mark)).put(b"")
    except StorageError as error:  # the segment is there all the same
        _log.debug("spool %s: the rows of segment %d were not told: %s", folder, number, error)


def _rows_name(number: int, rows: int, mark: str) -> str:
    return f"{number:020d}-{rows}-{mark}.rows"


def _is_there(path: Remote, mark: str, size: int) -> bool:
    """Whether what ``path`` has, or had before it was deleted, is the segment of this mark and size."""
    there = path.exists()
    if there is None or there.size not in (size, _MARK_BYTES):
        return False
    content = path.read()
    if len(content) == _MARK_BYTES:
        return bytes(content) == mark.encode()
    return bool((arrow.opened(content, path).schema.metadata or {}).get(MARK) == mark.encode())
