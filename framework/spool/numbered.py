"""The segments in a storage: objects whose names are their numbers, so that who puts a name exclusively has the number.

- ``00000000000000000042.arrow``: a segment, by one exclusive put: all of it is there, or nothing.
- ``00000000000000000042-2500-MARK-FIRST-LAST-NODE.NODE.rows``: empty; says the rows of 42, from when to when brokers took them
  (ns since 1970), and the marks of the brokers' nodes where they are few, so that planning a read opens nothing. It is a help
  only: whoever misses one, because its writer was killed, looks into the segment and puts it. Those of earlier versions say no
  nodes, or no times.
- A segment that was deleted leaves its mark alone under its name, for a day. Without it, a collector that was paused before its
  put could take a number that everybody has read already.
- ``runs/``: see ``runs``; what is there says from which number on a listing is needed here.
- ``floor``: a number under which there are no segments any more, so that a listing need not begin with what they left.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import uuid4

from framework.spool import arrow, runs, times
from framework.spool.arrow import MARK, Segment
from framework.spool.storage import Entry, Remote, StorageError
from framework.spool.told import tell, told

_log = logging.getLogger(__name__)
_BEGINS = re.compile(arrow.NUMBER)
_NAME = re.compile(rf"{arrow.NUMBER}\.arrow")
_ROWS = re.compile(rf"{arrow.NUMBER}-([0-9]{{1,18}})-([0-9a-f]{{32}})(?:-([0-9]+)-([0-9]+)(?:-([0-9a-f.]+))?)?\.rows")
_MARK_BYTES = 32
_NO_MARK = b"0" * _MARK_BYTES
_RUNS = "runs"
_FLOOR = "floor"
_MOST_NODES = 8
"""In a name, which has 255 bytes in HDFS."""
_TAKEN_FOR = 86400.0
"""Seconds for which the number of a deleted segment stays taken, by the storage's clock."""
_TIDY_EVERY = 3600.0
_MANY_LEFT = 500
"""As many deleted segments in a listing are worth a look where it may begin by now."""


class _Rows(NamedTuple):
    """What the name beside a segment says."""

    rows: int
    mark: str
    taken: tuple[int, int] | None
    nodes: frozenset[str] | None

    @classmethod
    def of(cls, rows: Any, mark: str) -> _Rows:
        """What a segment with ``rows`` is to say."""
        first, last, nodes = times.of(rows)
        marks = frozenset(map(times.mark_of, nodes or ()))
        return cls(rows.num_rows, mark, (first, last), marks if len(marks) <= _MOST_NODES else None)


_floors: dict[Remote, int] = {}
_tidied: dict[Remote, float] = {}
_run_lists: dict[Remote, tuple[float, list[Segment]]] = {}
"""When they are to be looked for again, and what there was."""
_marked: dict[Remote, frozenset[int]] = {}
"""The numbers that had no more than a mark in the last listing."""
_looked_into: dict[tuple[str, float], _Rows] = {}
"""(name, time) of a segment whose rows nobody had put -> what ``_look_into`` found."""


def write(folder: Remote, number: int, rows: Any) -> Segment | None:
    """Make ``rows`` segment ``number``; None where another writer has that number, or had it. Raises StorageError."""
    arrow.check_number(number, folder)
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
    told = _Rows.of(rows, mark)
    _tell_rows(folder, number, told)
    return Segment(number, rows.num_rows, path, content.size, None, mark, told.taken, nodes=told.nodes)


def listing(folder: Remote) -> list[Segment]:
    """The segments by number; empty where there are none. Raises StorageError, and SpoolError for one that is damaged."""
    return shown(folder)[0]


def shown(folder: Remote) -> tuple[list[Segment], int]:
    """``listing``, and the highest number of which that showed anything, also what a segment left that has gone. Raises as it."""
    found, left, highest = _listed(folder)
    if _may_lack_runs(folder, found, left) and _run_lists.pop(folder, None) is not None:
        found, left, highest = _listed(folder)  # this process stood still perhaps, and its clock with it
    if not found and _floors.get(folder) != 1:  # the last one is never deleted: this is another spool under the same name
        forget(folder)
        _floors[folder] = 1
        found, left, highest = _listed(folder)
    if len(left) > _MANY_LEFT:
        _floors.pop(folder, None)
    _marked[folder] = frozenset(left)
    return found, highest


def _may_lack_runs(folder: Remote, found: list[Segment], left: list[int]) -> bool:
    """Whether something between the segments is missing, or has left no more than a mark before them since the last listing."""
    known = _marked.get(folder, ())
    gap = any(two.begins != one.number + 1 for one, two in pairwise(found))
    return gap or (bool(found) and any(one < found[0].begins and one not in known for one in left))


def highest(folder: Remote, after: int) -> int:
    """The highest number above ``after`` that anything has here, also what a segment left that has gone; else ``after``. Raises
    StorageError."""
    names = (entry.name for entry in folder.list(f"{after:020d}"))
    matches = (_NAME.fullmatch(name) or _ROWS.fullmatch(name) for name in names)
    return max([after, *(int(match[1]) for match in matches if match)])


def forget(folder: Remote) -> None:
    """What is known of ``folder`` from before: a process that stood still meanwhile, or a clock, may make it too old."""
    for known in (_floors, _run_lists, _marked):
        known.pop(folder, None)


def read(path: Remote) -> Any:
    """The rows of a segment. Raises FileNotFoundError, also for one that was deleted, SpoolError and StorageError."""
    content = path.read()
    if len(content) == _MARK_BYTES:
        raise FileNotFoundError(f"{path} was deleted")
    return arrow.opened(content, path)


def remove(one: Segment) -> None:
    """Leave nothing of it but its mark, and nothing to read. Raises StorageError."""
    assert isinstance(one.path, Remote)
    if one.first is not None:
        one.path.delete()  # its numbers were taken long ago
        return
    one.path.put(one.mark.encode(), over=True)
    (one.path.parent / _rows_name(one.number, _Rows(one.rows, one.mark, one.taken, one.nodes))).delete()


def tidy(folder: Remote, floor: int) -> None:
    """Once all under ``floor`` are removed: let listings begin there, and forget the numbers that were removed long ago."""
    tell(folder, _FLOOR, floor)
    _floors[folder] = floor
    now = time.monotonic()
    if now < _tidied.get(folder, 0.0):
        return
    _tidied[folder] = now + _TIDY_EVERY
    entries = [entry for entry in folder.list() if _BEGINS.match(entry.name)]
    latest = max((entry.modified for entry in entries), default=0.0)
    for entry in entries:
        if int(entry.name[:20]) < floor and entry.modified < latest - _TAKEN_FOR:
            (folder / entry.name).delete()
    for run in filter(None, (runs.named(folder / _RUNS, entry.name) for entry in (folder / _RUNS).list())):
        if run.number < floor:  # made while they were removed, and seen by nobody
            (folder / _RUNS / run.path.name).delete()


def _listed(folder: Remote) -> tuple[list[Segment], list[int], int]:
    """What is there, which numbers among it have no more than a mark, and the highest number of all."""
    first = _floors.get(folder)
    if first is None:
        first = _floors[folder] = told(folder, _FLOOR) or 1
    segments: dict[int, Entry] = {}
    rows: dict[int, _Rows] = {}
    left = []
    held = _runs(folder, first)
    blocks = {run.begins // runs.BLOCK for run in held}
    for run in held:  # what they have left is not to be gone through
        if run.begins <= first:
            first = run.number + 1
    for entry in folder.list(f"{first:020d}"):
        if match := _NAME.fullmatch(entry.name):
            if entry.size == _MARK_BYTES:
                left.append(int(match[1]))
            else:
                segments[int(match[1])] = entry
        elif match := _ROWS.fullmatch(entry.name):
            taken = None if match[4] is None else (int(match[4]), int(match[5]))
            nodes = None if match[6] is None else frozenset(match[6].split("."))
            rows[int(match[1])] = _Rows(int(match[2]), match[3], taken, nodes)
    found = []
    for number, entry in sorted(segments.items()):
        if (number - 1) // runs.BLOCK in blocks:
            continue
        with suppress(FileNotFoundError):  # deleted just now
            said = rows.get(number) or _look_into(folder, number, entry)
            path = folder / entry.name
            found.append(Segment(number, said.rows, path, entry.size, entry.modified, said.mark, said.taken, nodes=said.nodes))
    return runs.beside(found, held), left, max([*segments, *rows, *left], default=0)


def write_run(folder: Remote, name: str, rows: Any) -> None:
    """Make the run ``name``; nothing where it is there. Raises StorageError."""
    (folder / _RUNS / name).put(arrow.content_of(rows, _NO_MARK.decode()))


def remove_held(folder: Remote, until: float) -> bool:
    """Leave nothing of the segments that runs hold as well, and have for a while, but their marks, and for a day; no longer than
    ``until`` (monotonic). Whether that is done. Raises StorageError, and SpoolError for a run that does not hold them."""
    entries = [one for one in folder.list() if _BEGINS.match(one.name)]
    now = max((one.modified for one in entries), default=0.0)
    old = [entry.name for entry in (folder / _RUNS).list() if entry.modified <= now - runs.GRACE]
    for run in filter(None, (runs.named(folder / _RUNS, name) for name in old)):
        held = [one for one in entries if (int(one.name[:20]) - 1) // runs.BLOCK == run.begins // runs.BLOCK]
        said = {int(match[1]): match for one in held if (match := _ROWS.fullmatch(one.name))}
        plain = [one for one in held if _NAME.fullmatch(one.name) and one.size != _MARK_BYTES]
        rows = {
            number: int(said[number][2]) if number in said else read(folder / one.name).num_rows
            for one in plain
            if (number := int(one.name[:20]))
        }
        if rows:
            runs.check_held(run, read(folder / _RUNS / run.path.name)[runs.PLACE[0]], rows)
        for entry in held:
            path, number = folder / entry.name, int(entry.name[:20])
            if not _NAME.fullmatch(entry.name):
                path.delete()
            elif entry.size != _MARK_BYTES:
                path.put(said[number][3].encode() if number in said else _mark_of(read(path)), over=True)
            elif entry.modified < now - _TAKEN_FOR:
                path.delete()
            else:
                continue
            if time.monotonic() > until:
                return False
    return True


def _runs(folder: Remote, first: int) -> list[Segment]:
    """Those that hold ``first`` or a later one. They may be of a while ago: what a run holds stays beside it for longer."""
    now = time.monotonic()
    at, found = _run_lists.get(folder, (0.0, []))
    if now >= at:
        # A run begins with its block, also where a query has trimmed within the block while it was made.
        begins = first - (first - 1) % runs.BLOCK
        entries = (folder / _RUNS).list(f"{begins:020d}")
        named = ((entry, runs.named(folder / _RUNS, entry.name)) for entry in entries)
        found = [run._replace(size=entry.size) for entry, run in named if run is not None]
        _run_lists[folder] = now + runs.GRACE / 2, found
    return [run for run in found if run.number >= first]


def _mark_of(table: Any) -> bytes:
    return bytes((table.schema.metadata or {}).get(MARK, _NO_MARK))


def _look_into(folder: Remote, number: int, entry: Entry) -> _Rows:
    path = folder / entry.name
    known = _looked_into.get((str(path), entry.modified))
    if known is None:
        table = read(path)
        mark = _mark_of(table).decode()
        known = _looked_into[str(path), entry.modified] = _Rows.of(table, mark)
        _tell_rows(folder, number, known)
    return known


def _tell_rows(folder: Remote, number: int, rows: _Rows) -> None:
    try:
        (folder / _rows_name(number, rows)).put(b"")
    except StorageError as error:  # the segment is there all the same
        _log.debug("spool %s: the rows of segment %d were not told: %s", folder, number, error)


def _rows_name(number: int, rows: _Rows) -> str:
    taken = "" if rows.taken is None else "-{}-{}".format(*rows.taken)
    nodes = "" if rows.nodes is None else f"-{'.'.join(sorted(rows.nodes))}"
    return f"{number:020d}-{rows.rows}-{rows.mark}{taken}{nodes}.rows"


def _is_there(path: Remote, mark: str, size: int) -> bool:
    """Whether what ``path`` has, or had before it was deleted, is the segment of this mark and size."""
    there = path.exists()
    if there is None or there.size not in (size, _MARK_BYTES):
        return False
    content = path.read()
    if len(content) == _MARK_BYTES:
        return bytes(content) == mark.encode()
    return bool((arrow.opened(content, path).schema.metadata or {}).get(MARK) == mark.encode())
