"""The files of all batches, from which the state can be made anew: kept for good, and joined before they become many.

A file is joined a few times in its life, however long the history: sixty batches become a run, sixty such runs a longer one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from workers.api_requests import durable

_log = logging.getLogger(__name__)
_MANY = 60  # files of one length before they are joined
_LONGEST = 3
"""How often sixty are joined: a run of 60^3 batches, 25 days of one every 10 s, is left as it is."""
_GROUP_ROWS = 1_000_000
"""Rows whose counts are added up at a time, so that memory has an end."""
_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("hour", _TIME), ("address", pa.string()), ("requests", pa.int64()), ("latest", _TIME)])
_NAME = re.compile(r"(?:batch-(?P<only>\d{9})|upto-(?P<upto>\d{9})|run-(?P<first>\d{9})-(?P<last>\d{9}))\.parquet")


class Piece(NamedTuple):
    """A file that holds what the batches ``first`` to ``last`` counted."""

    last: int
    first: int
    path: Path


class Torn(Exception):
    """A file holds batches that the state has and such that it has not: an older copy of the state was put back."""


def after(folder: Path, applied: int) -> list[Piece]:
    """The files of batches after ``applied``, in order. Raises Torn."""
    found = [one for one in _pieces(folder) if one.last > applied]
    if found and found[0].first <= applied:
        raise Torn(f"it ends within {found[0].path.name}")
    return found


def join(folder: Path, applied: int) -> None:
    """Join files of batches up to ``applied`` where there are many, and remove such as a longer run holds.

    A crash anywhere inside loses nothing, and what goes wrong here fails no batch.
    """
    try:
        for length in range(_LONGEST):
            pieces = [one for one in _pieces(folder) if one.last <= applied]
            newest = list(_newest(pieces, length))
            if sum(_length(one) == length for one in newest) >= _MANY:
                name = f"run-{newest[0].first:09d}-{newest[-1].last:09d}.parquet"
                _write([one.path for one in newest], folder / name)
        keep = {one.path for one in _pieces(folder)}
        for one in _all(folder):
            if one.path not in keep:
                one.path.unlink()
    except (OSError, pa.ArrowException) as error:
        _log.warning("%s: its small files stay as they are: %s", folder, error)


def _newest(pieces: list[Piece], length: int) -> Iterator[Piece]:
    """Those after the last one that is longer: a run must not reach over it."""
    longer = [index for index, one in enumerate(pieces) if _length(one) > length]
    yield from pieces[longer[-1] + 1 if longer else 0 :]


def _length(one: Piece) -> int:
    span, length = one.last - one.first + 1, 0
    while span >= _MANY and length < _LONGEST:
        span, length = span // _MANY, length + 1
    return length


def _pieces(folder: Path) -> list[Piece]:
    """Those that count, in order: none that another holds, as between the write of a run and the removal of its parts."""
    found: list[Piece] = []
    for one in sorted(_all(folder), key=lambda one: (one.first, -one.last)):
        if not found or one.last > found[-1].last:
            found.append(one)
    return found


def _all(folder: Path) -> Iterator[Piece]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            only, upto = match["only"], match["upto"]  # upto: an earlier version's, of all before
            last = int(only or upto or match["last"])
            yield Piece(last, last if only else 0 if upto else int(match["first"]), path)


def rows(path: Path) -> Iterator[pa.Table]:
    """What a file holds, in tables of SCHEMA that fit in memory."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=SCHEMA.names):
            yield pa.Table.from_batches([batch]).select(SCHEMA.names).replace_schema_metadata().cast(SCHEMA)


def _write(parts: list[Path], run: Path) -> None:
    fresh = run.with_name(f".{run.name}.new")
    with pq.ParquetWriter(fresh, SCHEMA, compression="zstd") as writer:
        for table in _added_up(parts):
            writer.write_table(table)
    durable.replace(fresh, run)


def _added_up(parts: list[Path]) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    for table in (table for path in parts for table in rows(path)):
        held.append(table)
        if sum(one.num_rows for one in held) >= _GROUP_ROWS:
            yield _sums(held)
            held = []
    if held:
        yield _sums(held)


def _sums(tables: list[pa.Table]) -> pa.Table:
    sums = pa.concat_tables(tables).group_by(["hour", "address"]).aggregate([("requests", "sum"), ("latest", "max")])
    return sums.rename_columns(["hour", "address", "requests", "latest"]).select(SCHEMA.names).cast(SCHEMA)
