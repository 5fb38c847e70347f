"""How messages ended, as values: a row for each, and blocks of rows as bytes. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from framework.middleware.retry import encodable


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


class _Columns(msgspec.Struct, array_like=True):
    """Values of entries; of a column in which all are equal, only one. Packing by zlib cost more than all else together."""

    count: int
    id: list[bytes]
    handler: list[str]
    node: list[str]
    attempt: list[int]
    outcome: list[str]
    error: list[tuple[str, str]]
    started: list[float]
    ended: list[float]


_decoder = msgspec.msgpack.Decoder(_Columns)


def pack(entries: Sequence[Entry]) -> bytes:
    columns = zip(*entries, strict=True)
    return msgspec.msgpack.encode([len(entries), *(column if len(set(column)) > 1 else column[:1] for column in columns)])


def unpack(data: bytes) -> list[Row]:
    """Raises ValueError for what is no block."""
    try:
        count, *columns = msgspec.structs.astuple(_decoder.decode(data))
    except msgspec.MsgspecError as error:
        raise ValueError(f"is no block of a history: {error}") from None
    whole = (column if len(column) == count else column * count for column in columns)
    return [_row(*values) for values in zip(*whole, strict=True)]


def _row(  # noqa: PLR0917 - the columns
    id_: bytes, handler: str, node: str, attempt: int, outcome: str, error: tuple[str, str], started: float, ended: float
) -> Row:
    name = encodable(id_.decode(errors="replace"))
    return Row(name, handler, node, attempt, outcome, *error, started, round(max(0.0, ended - started), 6))
