"""Tells a collector's folder that went on from one whose numbers were given again: it was emptied by hand, or put back as it was
before. No Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from framework.spark.offsets import Cursor, Offset, start_of
from framework.spool import SpoolError
from framework.spool.root import collectors
from framework.spool.segment import Segment, mark_of, steady
from framework.spool.storage import Location
from framework.spool.told import BEGINS, told

Listing = Mapping[str, list[Segment]]


def list_spool(root: Location) -> Listing:
    """Every collector's segments."""
    return {name: steady(root / name) for name in collectors(root)}


def given_again(offset: Offset, name: str, found: Sequence[Segment], lives: Mapping[str, str], folder: Location) -> str | None:
    """In words, why what ``offset`` says of ``name`` is not of what is ``found`` in its ``folder``; None where it is."""
    cursor = offset.cursors[name]
    # The first of them may have been deleted by now; a collector that lived on while its folder was emptied says where it did.
    if offset.began_anew(name, lives) and min(start_of(found), Cursor(told(folder, BEGINS) or 1, 0)) < cursor:
        return f"the folder of collector {name} was emptied, and its numbers began anew"
    known, there = offset.read.get(name), last_read(found, cursor)
    if known is None or there is None or known == there:
        return None
    return (
        f"segment {_last(cursor)} of collector {name} is not the one that was read: its folder was put back as it was before, "
        "and numbers were given again"
    )


def last_read(found: Sequence[Segment], cursor: Cursor) -> str | None:
    """What tells the segment of the last row before ``cursor`` from any other that had its number; None where it is not there any
    more, or in a run."""
    number = _last(cursor)
    with suppress(FileNotFoundError, SpoolError):  # who reads it says what is wrong with it
        for one in reversed(found):
            if one.begins <= number:
                return mark_of(one) if one.number == number and one.first is None else None
    return None


def _last(cursor: Cursor) -> int:
    return cursor.segment if cursor.row else cursor.segment - 1
