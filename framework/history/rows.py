"""How messages ended, as values: a row for each, and blocks of rows as bytes. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec


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


class _Columns(msgspec.Struct, array_like=True):
    """Equal values beside each other: they are packed to a third of what rows are."""

    id: list[str]
    handler: list[str]
    node: list[str]
    attempt: list[int]
    outcome: list[str]
    exception: list[str]
    words: list[str]
    started: list[float]
    seconds: list[float]


_decoder = msgspec.msgpack.Decoder(_Columns)


def pack(rows: Sequence[Row]) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(list(zip(*rows, strict=True))), 1)


def unpack(data: bytes) -> list[Row]:
    """Raises ValueError for what is no block."""
    try:
        columns = _decoder.decode(zlib.decompress(data))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"is no block of a history: {error}") from None
    return [Row(*values) for values in zip(*msgspec.structs.astuple(columns), strict=True)]
