"""Rows of the sink -> what is published: which topic, delay and key each has. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from framework.errors import WrongUse

COLUMNS = ("value", "topic", "key", "delay")
_NOT_ONE_LINE = "[\\x00-\\x1f\\x7f-\\x{9f}]"


@dataclass(slots=True)
class Run:
    """Rows that are published alike, in their order."""

    topic: str
    delay: float
    """Seconds until the first delivery."""
    bodies: list[bytes]
    keys: list[str] | None
    """One for each; None where rows have none."""


class RowKeys:
    """The keys of rows that bring none: what is the same when Spark runs their task again, and a number."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._next = 0

    def take(self, count: int) -> list[str]:
        """Those of the next rows of the task."""
        first = self._next
        self._next += count
        return [f"{self._task}-{number}" for number in range(first, self._next)]


def runs(batch: pa.RecordBatch, topic: str | None, numbered: RowKeys | None = None) -> Iterator[Run]:
    """The rows by topic and delay; those of each stay in order. ``topic``: of all, where they have no column of that name.

    A column ``key`` goes before ``numbered``. Raises WrongUse for a null where none can be.
    """
    bodies = _no_nulls(batch, "value").cast(pa.binary()).to_pylist()
    keys = _keys(batch, numbered)
    delays = batch.column("delay").cast(pa.float64()).fill_null(0.0).to_pylist() if "delay" in batch.schema.names else None
    topics = None if topic is not None else _no_nulls(batch, "topic").to_pylist()
    if topics is None and delays is None:
        yield Run(topic or "", 0.0, bodies, keys)
        return
    groups = list(zip(topics or [topic] * len(bodies), delays or [0.0] * len(bodies), strict=True))
    order = sorted(range(len(bodies)), key=groups.__getitem__)  # which keeps the order of equals
    for (name, delay), numbers in groupby(order, key=groups.__getitem__):
        rows = list(numbers)
        yield Run(name or "", delay, [bodies[row] for row in rows], None if keys is None else [keys[row] for row in rows])


def _keys(batch: pa.RecordBatch, numbered: RowKeys | None) -> list[str] | None:
    if "key" not in batch.schema.names:
        return numbered.take(batch.num_rows) if numbered is not None else None
    column = _no_nulls(batch, "key")
    bad = pc.filter(column, pc.or_(pc.equal(pc.binary_length(column), 0), pc.match_substring_regex(column, _NOT_ONE_LINE)))
    if len(bad):
        raise WrongUse(
            f"{len(bad)} rows have a key that is no text of one line, as {bad[0].as_py()!r:.100}: encode it, as by hex()"
        )
    return column.to_pylist()  # type: ignore[no-any-return]


def _no_nulls(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if column.null_count:
        raise WrongUse(f"{column.null_count} rows have a null {name}, which cannot be published: filter them out")
    return column
