"""How messages ended, as values and as bytes: whole rows, and runs of messages that were finished one after another. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from framework.hooks import Finished
from framework.observe.logging import encodable


class Row(NamedTuple):
    """One delivery that has ended."""

    id: str
    handler: str
    """``topic/channel``"""
    node: str
    attempt: int
    outcome: str
    """In the ledger's words: finished, requeued, dead, lease_lost."""
    exception: str
    """The class of what its call raised, as ``shop.orders.NoSuchOrder``; empty where that is nothing, or not known."""
    words: str
    """The first line of what it says."""
    started: float
    """When its call was begun, seconds since 1970."""
    seconds: float
    """From then until its broker was told of the outcome."""


Entry: TypeAlias = tuple[bytes, str, str, int, str, tuple[str, str], float, float]
"""A Row as it is put: the id as bytes, exception and words in one, and when it ended in place of the seconds."""


Item: TypeAlias = "Entry | Run"
NONE = ("", "")


class Run(NamedTuple):
    """Messages that one slot has finished, one after another: 17 bytes for each on NSQ, and no object."""

    handler: str
    node: str
    attempt: int
    """Of each of them."""
    ids: bytes
    """A line for each."""
    many: int
    began: float
    """When the first was begun, seconds since 1970."""
    until: float
    """When the last of them ended. Each is said to have taken as long as the others."""
    together: bool = False
    """One call has finished all: each has taken all of the time."""


def run_of(handler: str, run: Finished) -> Run | None:
    """None where the ids are not as those of all brokers are, each of one line."""
    lines = b"\n".join(run.ids)
    if lines.count(b"\n") != len(run.ids) - 1:
        return None
    return Run(handler, run.node, run.attempts, lines, len(run.ids), run.began, run.until, run.together)


def entries_of(handler: str, run: Finished) -> Iterator[Entry]:
    seconds = (run.until - run.began) / (1 if run.together else len(run.ids))
    for number, id_ in enumerate(run.ids):
        began = run.began + (0 if run.together else number * seconds)
        yield id_, handler, run.node, run.attempts, "finished", NONE, began, began + seconds


def rows_of(run: Run) -> Iterator[Row]:
    as_it_was = Finished(run.node, run.attempt, run.ids.split(b"\n"), run.began, run.until, run.together)
    return map(row_of, entries_of(run.handler, as_it_was))


class _Columns(msgspec.Struct, array_like=True):
    """Values of entries; of a column in which all are equal, only one. Packing by zlib cost more than all else together."""

    many: int
    id: list[bytes]
    handler: list[str]
    node: list[str]
    attempt: list[int]
    outcome: list[str]
    error: list[tuple[str, str]]
    started: list[float]
    ended: list[float]


_columns = msgspec.msgpack.Decoder(_Columns)
_runs = msgspec.msgpack.Decoder(list[Run])


def pack(entries: Sequence[Entry]) -> bytes:
    columns = zip(*entries, strict=True)
    return msgspec.msgpack.encode([len(entries), *(column if len(set(column)) > 1 else column[:1] for column in columns)])


def pack_runs(runs: Sequence[Run]) -> bytes:
    return msgspec.msgpack.encode(runs)


def unpack(data: bytes) -> list[Row]:
    """Raises ValueError for what is no block."""
    try:
        count, *columns = msgspec.structs.astuple(_columns.decode(data))
    except msgspec.MsgspecError as error:
        raise ValueError(f"is no block of a history: {error}") from None
    whole = (column if len(column) == count else column * count for column in columns)
    return [row_of(entry) for entry in zip(*whole, strict=True)]


def unpack_runs(data: bytes) -> list[Run]:
    """Raises ValueError for what is no block of runs."""
    try:
        return _runs.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"is no block of a history: {error}") from None


def row_of(entry: Entry) -> Row:
    id_, handler, node, attempt, outcome, error, started, ended = entry
    name = encodable(id_.decode(errors="replace"))
    return Row(name, handler, node, attempt, outcome, *error, started, round(max(0.0, ended - started), 6))
