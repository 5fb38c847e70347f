"""Runs: the rows of many small segments in one file each, so that a channel of little traffic does not pile up files.

A run holds the segments of one block of numbers, and its rows keep the segment and position that they had. It is made beside
them, exclusively and durably, and only then do they go: whoever sees both takes the run. Two collectors that make one at a time
make the same. Where it lies is the matter of ``files`` and ``numbered``; here is what they have in common.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from framework.spool.arrow import NUMBER, Segment, SpoolError, metadata_of_all
from framework.spool.storage import Location

BLOCK = 1000
"""Segments in a run: their numbers are those from a multiple of it, and 1, on."""
_LARGE = 64 * 1024 * 1024
"""Bytes: as many are no small segments, and a run is mapped whole."""
GRACE = 60.0
"""Seconds for which what a run holds stays beside it: a listing that has begun may have missed the run, and a read be planned."""
NAME = re.compile(rf"{NUMBER}-{NUMBER}-([0-9]{{1,18}})-([0-9]{{1,18}})-([0-9]+)-([0-9]+)\.run")
PLACE = ("segment", "position")
"""The columns that a run has besides those of a segment."""


def name_of(one: Segment) -> str:
    """Says all that a listing says, so that planning a read opens nothing."""
    assert one.taken is not None
    assert one.landed is not None
    return f"{one.begins:020d}-{one.number:020d}-{one.rows}-{round(one.landed * 1e6)}-{one.taken[0]}-{one.taken[1]}.run"


def named(folder: Location, name: str) -> Segment | None:
    """The run of this name; None where it is none."""
    match = NAME.fullmatch(name)
    if match is None:
        return None
    first, number, rows, landed, since, until = map(int, match.groups())
    return Segment(number, rows, folder / name, None, landed / 1e6, "", (since, until), first)


def beside(plain: Iterable[Segment], found: Iterable[Segment]) -> list[Segment]:
    """The segments ``plain`` and the runs ``found`` by number, without those that a run holds as well."""
    runs = {one.begins // BLOCK: one for one in found}
    rest = [one for one in plain if (one.number - 1) // BLOCK not in runs]
    return sorted([*rest, *runs.values()], key=lambda one: one.number)


def due(some: Sequence[Segment], size: Callable[[Segment], int]) -> Iterator[list[Segment]]:
    """The blocks of ``some`` that are to become runs. ``size``: of a segment, in bytes.

    The two newest blocks stay as they are: whoever lands is at work there, and who reads what has just come.
    """
    newest = (some[-1].number - 1) // BLOCK if some else 0
    for number, block in groupby(some, key=lambda one: (one.number - 1) // BLOCK):
        found = list(block)
        if number < newest - 1 and len(found) == BLOCK and sum(map(size, found)) < _LARGE:
            yield found


def of(block: Sequence[Segment], tables: Sequence[pa.Table]) -> pa.RecordBatch | None:
    """The rows of the run of ``block``; None where segments differ in what they say of a node's ids."""
    said = metadata_of_all(tables)
    if said is None:
        return None
    placed = pa.concat_tables([_placed(one, table, said) for one, table in zip(block, tables, strict=True)])
    (rows,) = placed.combine_chunks().to_batches()
    return rows


def _placed(one: Segment, table: pa.Table, said: dict[bytes, bytes]) -> pa.Table:
    numbers = pa.repeat(pa.scalar(one.number, pa.int64()), table.num_rows)
    positions = pa.array(range(table.num_rows), pa.int32())
    return table.append_column(PLACE[0], numbers).append_column(PLACE[1], positions).replace_schema_metadata(said)


def check_held(run: Segment, numbers: pa.ChunkedArray, plain: Mapping[int, int]) -> None:
    """Before the segments beside a run go. ``plain``: their rows by number. Raises SpoolError where it does not hold them."""
    there = {one.number: one.rows for one in parts(run, numbers)}
    if other := [number for number, rows in plain.items() if there.get(number) != rows]:
        raise SpoolError(
            f"spool {run.path.parent}: {run.path.name} does not hold the rows of segment {min(other)}, which is there as well: "
            "remove the one of both that was copied here; until then the segments stay"
        )


def parts(run: Segment, numbers: pa.ChunkedArray) -> list[Segment]:
    """The segments that ``run`` holds. ``numbers``: its column of them."""
    found, at = [], 0
    for counted in pc.value_counts(numbers).to_pylist():
        number, rows = counted["values"], counted["counts"]
        found.append(run._replace(number=number, rows=rows, first=None, at=at))
        at += rows
    return found
