"""What a batch of acts comes to before it is added to the state: grouped by Arrow, at a third of what SQLite takes for it.

Nothing here is known of earlier batches. A boolean that is null counts as neither, as in SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

DAY = 86_400_000_000  # microseconds
SLOT = 30_000_000
"""Microseconds: half a minute, of which all windows of time are made."""

Rows = Iterator[tuple[Any, ...]]


def addresses(acts: pa.Table) -> Rows:
    """Whose acts these are, each once."""
    return _rows(_sorted(acts, ["address"], []))


def slots(acts: pa.Table) -> Rows:
    """What each address did in each half minute, with the columns of the state's table ``slots``."""
    time, missing = acts["time"], acts["missing"]
    lost = pc.and_kleene(missing, pc.invert(acts["harmless"]))
    columns = {
        "address": acts["address"], "slot": pc.divide(time, SLOT), "day": _day(acts), "hour": acts["hour"],
        "harmless": acts["harmless"], "error": acts["error"], "missing": missing, "post": acts["post"], "time": time,
        "robots": _when(pc.equal(acts["path"], "/robots.txt"), time), "lost": _when(lost, time),
    }  # fmt: skip
    made = [
        ("hour", "min"), ([], "count_all"), ("harmless", "sum"), ("error", "sum"), ("missing", "sum"), ("post", "sum"),
        ("time", "min"), ("time", "max"), ("robots", "min"), ("lost", "min"),
    ]  # fmt: skip
    return _rows(_sorted(pa.table(columns), ["address", "slot", "day"], made))


def pages(acts: pa.Table, certain: Sequence[int]) -> Rows:
    """The ordinary pages that each address was served, none of a family in ``certain``: address, path, the last day."""
    ordinary = pc.invert(pc.fill_null(pc.is_in(acts["family"], pa.array(certain, acts["family"].type)), False))
    served = pc.and_kleene(acts["served"], pc.invert(acts["harmless"]))
    return _rows(_last_day(acts.filter(pc.and_kleene(served, ordinary)), ["address", "path"]))


def there(acts: pa.Table) -> Rows:
    """The pages that exist: path, the last day."""
    return _rows(_last_day(acts.filter(acts["there"]), ["path"]))


def whole(acts: pa.Table) -> Rows:
    """The acts of which more is kept than `slots`, `pages` and `there`: few of them, whole."""
    kept = pc.or_(pc.is_valid(acts["family"]), pc.is_valid(acts["in_window"]))
    return _rows(acts.filter(pc.or_(kept, pc.fill_null(acts["missing"], False))))


def taken(acts: pa.Table) -> tuple[int, int]:
    """When the queue took the first and the last of these."""
    found = pc.min_max(acts["taken"]).as_py()
    return found["min"], found["max"]


def _last_day(acts: pa.Table, keys: list[str]) -> pa.Table:
    columns = {name: acts[name] for name in keys}
    return _sorted(pa.table({**columns, "day": _day(acts)}), keys, [("day", "max")])


def _day(acts: pa.Table) -> pa.ChunkedArray:
    return pc.divide(acts["taken"], DAY)


def _when(condition: pa.ChunkedArray, value: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(condition, value, pa.scalar(None, value.type))


def _sorted(table: pa.Table, keys: list[str], made: Sequence[tuple[Sequence[str], str]]) -> pa.Table:
    """By the keys, in whose order SQLite keeps its tables: rows that come so are added at one place after the other."""
    return table.group_by(keys, use_threads=False).aggregate(made).sort_by([(name, "ascending") for name in keys])


def _rows(table: pa.Table) -> Rows:
    for batch in table.to_batches(max_chunksize=10_000):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
