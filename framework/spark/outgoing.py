"""Rows of the sink -> what is published: which topic, delay and key each has. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from framework.errors import WrongUse

COLUMNS = ("value", "topic", "key", "delay")
_DIGEST = 12
"""Bytes, so that no two of a million million rows have the same by chance."""
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
    """The keys of rows that bring none: what is the same when Spark runs their task again, and what the row says.

    Not where it stands in its task. Behind a shuffle rows come in another order when a task is run again, and a row that has the
    key of another one would be skipped for it (measured: 276 of 4,000, by six kills of an executor).
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self._seen: set[bytes] = set()
        self._again: dict[bytes, int] = {}
        """Of equal rows, how many there were besides the first."""

    def take(self, bodies: Sequence[bytes], topics: Sequence[str] | None) -> list[str]:
        """Those of the next rows of the task. ``topics``: of each, where they differ."""
        # What is done for each row is most of what a key costs, so equal rows, which are rare, are looked for in all at once.
        found = _digests(bodies, topics)
        new = set(found)
        if len(new) == len(found) and self._seen.isdisjoint(new):
            self._seen |= new
            before = f"{self._task}-"
            return [before + one.hex() for one in found]
        return list(map(self._numbered, found))

    def _numbered(self, found: bytes) -> str:
        if found not in self._seen:
            self._seen.add(found)
            return f"{self._task}-{found.hex()}"
        number = self._again[found] = self._again.get(found, 0) + 1
        return f"{self._task}-{found.hex()}-{number}"


def _digests(bodies: Sequence[bytes], topics: Sequence[str] | None) -> list[bytes]:
    made = [_hash("").copy] * len(bodies) if topics is None else [_hash(topic).copy for topic in topics]
    found = []
    for body, fresh in zip(bodies, made, strict=True):
        one = fresh()
        one.update(body)
        found.append(one.digest())
    return found


@lru_cache(1024)
def _hash(topic: str) -> Any:
    """What the hash of each row of ``topic`` is a copy of: a copy takes two thirds of what making one does."""
    return blake2b(digest_size=_DIGEST, key=topic.encode()[:64])


def runs(batch: pa.RecordBatch, topic: str | None, made: RowKeys | None = None) -> Iterator[Run]:
    """The rows by topic and delay; those of each stay in order. ``topic``: of all, where they have no column of that name.

    A column ``key`` goes before ``made``. Raises WrongUse for a null where none can be.
    """
    bodies = _no_nulls(batch, "value").cast(pa.binary()).to_pylist()
    topics = None if topic is not None else _texts(_no_nulls(batch, "topic"), "topic")
    keys = _given_keys(batch) if "key" in batch.schema.names else made.take(bodies, topics) if made is not None else None
    delays = batch.column("delay").cast(pa.float64()).fill_null(0.0).to_pylist() if "delay" in batch.schema.names else None
    if topics is None and delays is None:
        yield Run(topic or "", 0.0, bodies, keys)
        return
    groups = list(zip(topics or [topic or ""] * len(bodies), delays or [0.0] * len(bodies), strict=True))
    order = sorted(range(len(bodies)), key=groups.__getitem__)  # which keeps the order of equals
    for (name, delay), numbers in groupby(order, key=groups.__getitem__):
        rows = list(numbers)
        yield Run(name, delay, [bodies[row] for row in rows], None if keys is None else [keys[row] for row in rows])


def _given_keys(batch: pa.RecordBatch) -> list[str]:
    column = _no_nulls(batch, "key")
    keys = _texts(column, "key")
    bad = pc.filter(column, pc.or_(pc.equal(pc.binary_length(column), 0), pc.match_substring_regex(column, _NOT_ONE_LINE)))
    if len(bad):
        raise WrongUse(
            f"{len(bad)} rows have a key that is no text of one line, as {bad[0].as_py()!r:.100}: encode it, as by hex()"
        )
    return keys


def _texts(column: pa.Array, name: str) -> list[str]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:  # Spark makes a string of any bytes, and looks at none of them
        raise WrongUse(f"a row has a {name} that is no UTF-8: make it of its bytes by hex() or base64()") from None


def _no_nulls(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if column.null_count:
        raise WrongUse(f"{column.null_count} rows have a null {name}, which cannot be published: filter them out")
    return column
