"""The segments of a collector, in a folder or in a storage: what both have in common, and which of them is asked.

What knows ids, collectors or retention is ``spool.py``. What a segment is, ``arrow.py`` says; how one is made exclusively,
``files.py`` and ``numbered.py`` do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

from framework.spool import arrow, files, numbered, runs, times
from framework.spool.ages import ages
from framework.spool.arrow import Segment, SpoolError, table_of
from framework.spool.seen import Key
from framework.spool.storage import Location
from framework.spool.times import Times

_log = logging.getLogger(__name__)
_LOOKS = 4

__all__ = [
    "Segment", "SpoolError", "Times", "behind", "compact", "cut", "highest", "joined", "keys", "landed_at", "listing", "mark_of",
    "newest", "parts", "read", "size", "steady", "sync_folder", "table_of", "times_of", "trim", "write",
]  # fmt: skip


def write(folder: Location, number: int, rows: Any, *, only: bool = False) -> Segment | None:
    """Make ``rows`` durable as segment ``number`` of ``folder``, or as the next number that is free.

    ``only``: with this number or not at all; None where another writer has it. A storage is always written so. On return the
    segment survives a power cut. Raises OSError; then no part of it can be seen, unless a storage does not say.
    """
    if isinstance(folder, Path):
        segment = files.write(folder, number, rows, only=only)
        if segment is not None:
            times.note(folder, segment, rows)
        return segment
    return numbered.write(folder, number, rows)


def listing(folder: Location) -> list[Segment]:
    """The segments of a collector's folder by number; empty when there is no such folder.

    Raises SpoolError when two files have one number, which no writer makes.
    """
    return _look(folder)[0]


def _look(folder: Location) -> tuple[list[Segment], int]:
    """``listing``, and the highest number of which a storage shows anything."""
    return (files.listing(folder), 0) if isinstance(folder, Path) else numbered.shown(folder)


def times_of(folder: Location, some: Sequence[Segment]) -> Mapping[int, Times]:
    """By number when brokers took the rows of ``some``, of those of which it is known without a look into them."""
    known = times.known(folder, some) if isinstance(folder, Path) else {}
    return known | {one.number: Times(*one.taken, one.nodes) for one in some if one.taken is not None}


def steady(folder: Location, *, anew: bool = False) -> list[Segment]:
    """``listing`` while others write: a folder that is read while names come may show a later one and not the one before, or
    neither a run nor what it holds. ``anew``: nothing that is known from before is good enough."""
    if anew and not isinstance(folder, Path):
        numbered.forget(folder)
    return _steady(folder)[0]


def _steady(folder: Location) -> tuple[list[Segment], int]:
    for _ in range(_LOOKS):
        found, shown = _look(folder)
        if all(two.begins == one.number + 1 for one, two in pairwise(found)):
            break
    return found, shown


def highest(folder: Location, found: Sequence[Segment] = ()) -> int:
    """The highest number that a segment has had, as far as is known: of ``found``, or of one that was removed by hand, of which
    something else tells, which is written after it. It is given to no other, whose rows a query would take for those that it has
    read. Raises StorageError."""
    newest = found[-1].number if found else 0
    return max(newest, times.highest(folder)) if isinstance(folder, Path) else numbered.highest(folder, newest)


def behind(folder: Location, number: int, notes: times.Notes | None) -> tuple[list[Segment], int, int]:
    """The segments from ``number`` on while others write, the highest number that is taken, as ``highest`` says it, and the
    highest of which anything is there. ``notes``: of a folder. Raises as ``listing`` does."""
    written = notes.highest() if notes is not None else 0  # before the list, which has what is named from now on
    found, shown = _steady(folder)
    fresh = [one for one in found if one.number >= number]
    there = max(shown, found[-1].number if found else 0)
    return fresh, max(written, there), there


def cut(some: Sequence[Segment], *numbers: int) -> list[Segment]:
    """``some``, with its parts in place of each run that holds one of ``numbers``, and without one that has gone. Raises
    SpoolError and StorageError."""
    found: list[Segment] = []
    for one in some:
        if one.first is None or not any(one.begins <= number <= one.number for number in numbers):
            found.append(one)
            continue
        with suppress(FileNotFoundError):  # a reader has committed it, and deleted it just now
            found += parts(one)
    return found


def parts(run: Segment) -> list[Segment]:
    """The segments that ``run`` holds. Raises as ``read`` does."""
    return runs.parts(run, read(run.path)[runs.PLACE[0]])


def joined(folder: Location, first: int, last: int) -> list[Segment]:
    """The runs that hold any of the segments ``first`` to ``last``, for who finds some of them gone: they were joined since the
    listing, or deleted."""
    return [one for one in steady(folder, anew=True) if one.first is not None and one.begins <= last and first <= one.number]


def compact(folder: Location, seconds: float, begun: dict[Location, Any] | None = None) -> bool:
    """Make runs of blocks of small segments, and remove what runs have held for a while; whether that is done for now.

    It takes about ``seconds``. ``begun``: what was read and not joined yet, for the next call. For a collector. A kill anywhere
    inside loses and doubles nothing. Raises OSError, and SpoolError for a run that does not hold what is beside it.
    """
    here: Any = files if isinstance(folder, Path) else numbered
    until = time.monotonic() + seconds
    begun = {} if begun is None else begun
    for block in runs.due(steady(folder), size):
        try:
            if not _read_all(block, begun, until):
                return False
            rows = runs.of(block, [begun[one.path] for one in block])
            landed = landed_at(block[-1])
        except FileNotFoundError:  # a reader has committed them, and deletes them
            continue
        except SpoolError as error:
            _log.warning("spool %s: segments %d to %d stay as they are: %s", folder, block[0].number, block[-1].number, error)
            continue
        if rows is not None and landed:
            first, last, _ = times.of(rows)
            run = block[-1]._replace(rows=rows.num_rows, landed=landed, taken=(first, last), nodes=None, first=block[0].number)
            here.write_run(folder, runs.name_of(run), rows)
    begun.clear()
    return bool(here.remove_held(folder, until))


def _read_all(block: Sequence[Segment], begun: dict[Location, Any], until: float) -> bool:
    """A thousand reads of an object store may take longer than a batch can wait."""
    for path in begun.keys() - {one.path for one in block}:
        del begun[path]
    for one in block:
        if one.path not in begun:
            if time.monotonic() > until:
                return False
            begun[one.path] = read(one.path)
    return True


def sync_folder(folder: Location) -> None:
    """Make the names in ``folder`` durable; those of a storage are."""
    if isinstance(folder, Path):
        files.sync_folder(folder)


def read(path: Location, columns: Sequence[str] | None = None) -> Any:
    """A segment's rows. Raises FileNotFoundError, SpoolError when it is not a segment, and StorageError."""
    table = arrow.mapped(path) if isinstance(path, Path) else numbered.read(path)
    return table if columns is None else table.select(columns)


def keys(path: Location, *, by_node: bool = True) -> list[Key]:
    """What tells a segment's messages from all others; ``by_node``: with their nodes. Raises as ``read`` does."""
    return arrow.keys_of(read(path, arrow.KEY_COLUMNS), by_node=by_node)


def mark_of(one: Segment) -> str:
    """What tells ``one`` from another that has, or had, its number; empty where that is not known. Of one in a folder it is made
    of its last row. Raises FileNotFoundError and SpoolError."""
    if not isinstance(one.path, Path):
        return one.mark
    there = arrow.status(one.path)
    return _mark_of(one.path, there.st_ino, there.st_mtime_ns, there.st_size)


@lru_cache(1024)
def _mark_of(path: Path, *file: int) -> str:
    table = read(path, arrow.KEY_COLUMNS)
    last = table.slice(max(0, table.num_rows - 1)).to_pylist()
    return blake2b(repr([table.num_rows, last]).encode(), digest_size=8).hexdigest()


def size(one: Segment) -> int:
    """Its bytes; 0 when it has gone. Raises SpoolError for a link to itself."""
    if one.size is not None:
        return one.size
    try:
        return arrow.status(Path(str(one.path))).st_size
    except FileNotFoundError:
        return 0


def landed_at(one: Segment) -> float:
    """In seconds since 1970; 0 when it has gone. Raises SpoolError for a link to itself."""
    if one.landed is not None:
        return one.landed
    try:
        return arrow.status(Path(str(one.path))).st_mtime
    except FileNotFoundError:
        return 0.0


def newest(kept: Sequence[Segment], rows: int, seconds: float) -> list[Segment]:
    """Of ``kept``, in order: the newest that hold ``rows`` rows together, and all landed in the ``seconds`` before the last.

    Where more than that passed between two of them the clock may have gone ahead: see ``ages``."""
    held, dates = 0, (landed_at(one) if seconds else 0.0 for one in reversed(kept))
    for index, age in zip(reversed(range(len(kept))), ages(dates, seconds), strict=True):
        if held >= rows and (age.seconds > seconds or not seconds):
            return list(kept[index + 1 :])
        held += kept[index].rows
    return list(kept)


def trim(folder: Location, before: int, keep_rows: int, keep_bytes: int | None = None, keep_seconds: float = 0.0) -> int:
    """Delete the segments numbered under ``before``, but keep the newest that hold ``keep_rows`` rows, and those of the last
    ``keep_seconds``; returns how many went.

    The kept ones are where an opening spool finds the ids that it has, and the last one keeps the numbering. ``keep_bytes``: the
    most that is kept for the ids.
    """
    found = listing(folder)
    needed = {one.number for one in newest(found, max(keep_rows, 1), keep_seconds)}
    newer_bytes, useless = 0, []
    for one in reversed(found):
        own_bytes = 0 if keep_bytes is None else size(one)
        is_over = keep_bytes is not None and one is not found[-1] and newer_bytes + own_bytes > keep_bytes
        if one.number < before and (one.number not in needed or is_over):
            useless.append(one)
        newer_bytes += own_bytes
    for one in reversed(useless):  # the oldest first: whoever is killed in the middle leaves no gap
        if isinstance(one.path, Path):
            one.path.unlink(missing_ok=True)
        else:
            numbered.remove(one)
    if useless and not isinstance(folder, Path):
        numbered.tidy(folder, useless[0].number + 1)
    return len(useless)
