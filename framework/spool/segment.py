"""One segment: an immutable Arrow IPC file of messages, durable before its name can be seen.

What knows ids, collectors or retention is ``spool.py``. A segment's name is its number and its row count,
``00000000000000000042-2500.arrow``, so that planning a read opens no file.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from framework.errors import FrameworkError
from framework.spool.seen import Key, key_of

try:
    import pyarrow as pa
except ImportError as error:  # the extra is not installed
    raise ImportError("the spool needs pyarrow: install nsq-workers[spark]") from error

if TYPE_CHECKING:
    from framework.message import Message

SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("timestamp_ns", pa.int64(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("nsqd", pa.string(), nullable=False),
    ]
)
_LASTING = b"lasting_ids"
"""In a segment's metadata: the nodes that give no id out again. Segments of earlier versions do not say."""
_LIFE = "@"  # in the ids of beanstalkd's jobs, before what names the life of its server
_NAME = re.compile(r"(\d{20})-(\d+)\.arrow")
_UNFINISHED = ".tmp"
_CLAIM = ".claim"


class SpoolError(FrameworkError):
    """The spool's folder cannot do what was asked: full, not readable, or not as it was left."""


class Segment(NamedTuple):
    """A segment that is durable. Numbers start at 1 and have no gaps; a higher number landed later."""

    number: int
    rows: int
    path: Path


def table_of(messages: Sequence[Message]) -> pa.RecordBatch:
    """The rows of a segment. Bodies are kept byte for byte and times to the nanosecond."""
    columns: list[Any] = [
        [m.body for m in messages],
        [m.id.decode("latin-1") for m in messages],
        [m.timestamp for m in messages],
        [m.attempts for m in messages],
        [m.topic for m in messages],
        [m.node for m in messages],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    lasting = sorted({m.node for m in messages if m.connection.lasting_ids})
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.with_metadata({_LASTING: json.dumps(lasting)}))


def keys(path: Path) -> list[Key]:
    """What tells a segment's messages from all others. Raises as ``read`` does."""
    table = read(path, ["nsqd", "topic", "message_id", "timestamp_ns"])
    said = (table.schema.metadata or {}).get(_LASTING)
    lasting = None if said is None else json.loads(said)
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return [
        key_of(node, topic, name.encode("latin-1"), at, lasting=_LIFE in name if lasting is None else node in lasting)
        for node, topic, name, at in rows
    ]


def write(folder: Path, number: int, rows: pa.RecordBatch, *, only: bool = False) -> Segment | None:
    """Make ``rows`` durable as segment ``number`` of ``folder``, or as the next number that is free.

    ``only``: with this number or not at all; None where another writer has it. On return the file and its name survive a power
    cut. Raises OSError; then no part of it can be seen.
    """
    fresh = folder / f"{uuid4().hex}{_UNFINISHED}"
    try:
        _write_and_sync(fresh, rows)
        segment = _name(fresh, folder, number, rows.num_rows, only)
    finally:
        fresh.unlink(missing_ok=True)
    if segment is not None:
        sync_folder(folder)
    return segment


def _write_and_sync(path: Path, rows: pa.RecordBatch) -> None:
    with path.open("xb") as file:
        with pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_batch(rows)
        file.flush()
        os.fsync(file.fileno())


def _name(fresh: Path, folder: Path, number: int, rows: int, only: bool) -> Segment | None:
    # A name holds the rows too, so that alone would let two writers take one number (where flock does nothing, as on some
    # network file systems). So a number is claimed first, by an exclusive link; a claim goes only once the folder has its
    # number or a later one, and its holder looks at the folder before it names anything. Not a rename: that replaces what
    # another writer has finished already, and both then finish their messages at the broker (measured: 1,000 of 2,000 lost).
    while True:
        claim = folder / f"{number:020d}{_CLAIM}"
        try:
            os.link(fresh, claim)
        except FileExistsError:
            settle(claim)
        else:
            named = _name_claimed(fresh, folder, number, rows)
            claim.unlink(missing_ok=True)
            if named is not None:
                return named
        newest = _newest(folder)
        if only and newest >= number:
            return None
        number = max(number, newest + 1)


def _name_claimed(fresh: Path, folder: Path, number: int, rows: int) -> Segment | None:
    """Name ``fresh``, whose number is claimed; None where a segment of this number, or a later one, is there already."""
    path = folder / f"{number:020d}-{rows}.arrow"
    if _newest(folder) < number:
        with suppress(FileExistsError):
            os.link(fresh, path)
    try:
        return Segment(number, rows, path) if path.samefile(fresh) else None  # another writer may have named it for us
    except FileNotFoundError:
        return None


def settle(claim: Path) -> None:
    """Finish what the holder of ``claim`` may have died over: its rows are durable, and the number must not become a gap."""
    held = claim.with_name(f"{uuid4().hex}{_UNFINISHED}")  # by this name the file stays the same, whoever claims next
    try:
        os.link(claim, held)
        _name_claimed(held, claim.parent, int(claim.name.partition(".")[0]), read(held).num_rows)
    except FileNotFoundError:  # its holder has finished
        return
    finally:
        held.unlink(missing_ok=True)
    claim.unlink(missing_ok=True)


def _newest(folder: Path) -> int:
    """The highest number in the folder; 0 when there is none."""
    last = max((name for name in os.listdir(folder) if _NAME.fullmatch(name)), default="0")
    return int(last.partition("-")[0])


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def listing(folder: Path) -> list[Segment]:
    """The segments of a collector's folder by number; empty when there is no such folder.

    Raises SpoolError when two files have one number, which no writer makes.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    segments = sorted(_parsed(folder, names))
    for one, two in pairwise(segments):
        if one.number == two.number:
            raise SpoolError(
                f"spool {folder}: {one.path.name} and {two.path.name} have one number; "
                "remove the one that was copied here, or begin an empty folder"
            )
    return segments


def _parsed(folder: Path, names: Iterable[str]) -> Iterable[Segment]:
    for name in names:
        if match := _NAME.fullmatch(name):
            yield Segment(int(match[1]), int(match[2]), folder / name)


def read(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A segment's rows, memory mapped. Raises FileNotFoundError, and SpoolError when it is not a segment."""
    with pa.memory_map(str(path)) as source:
        try:
            table = pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid as error:
            raise SpoolError(f"spool segment {path} is damaged: {error}") from error
    return table if columns is None else table.select(columns)


def steady(folder: Path) -> list[Segment]:
    """``listing`` while others write: a folder that is read while names come may show a later one and not the one before."""
    found = listing(folder)
    has_gap = bool(found) and found[-1].number - found[0].number + 1 != len(found)
    return listing(folder) if has_gap else found


def recover(folder: Path, unfinished_for: float = 0.0) -> None:
    """Finish what a killed writer left durable, and remove what it left half done. For its collector, under its lock.

    ``unfinished_for``: seconds after which a file that is half done is taken for one that nobody finishes.
    """
    for path in folder.glob(f"*{_CLAIM}"):
        settle(path)
    for path in folder.glob(f"*{_UNFINISHED}"):
        with suppress(FileNotFoundError):
            if unfinished_for == 0 or time.time() - path.stat().st_mtime > unfinished_for:
                path.unlink()


def size(one: Segment) -> int:
    """Its bytes; 0 when it has gone."""
    try:
        return one.path.stat().st_size
    except FileNotFoundError:
        return 0


def landed_at(one: Segment) -> float:
    """In seconds since 1970; 0 when it has gone."""
    try:
        return one.path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def newest(kept: Sequence[Segment], rows: int, seconds: float) -> list[Segment]:
    """Of ``kept``, in order: the newest that hold ``rows`` rows together, and all landed in the ``seconds`` before the last."""
    held, since = 0, landed_at(kept[-1]) - seconds if kept and seconds else float("inf")
    for index in range(len(kept) - 1, -1, -1):
        if held >= rows and landed_at(kept[index]) < since:
            return list(kept[index + 1 :])
        held += kept[index].rows
    return list(kept)


def trim(folder: Path, before: int, keep_rows: int, keep_bytes: int | None = None, keep_seconds: float = 0.0) -> int:
    """Delete the segments numbered under ``before``, but keep the newest that hold ``keep_rows`` rows, and those of the last
    ``keep_seconds``; returns how many went.

    The kept ones are where an opening spool finds the ids that it has, and the last one keeps the numbering. ``keep_bytes``: the
    most that is kept for the ids.
    """
    found = listing(folder)
    needed = newest(found, max(keep_rows, 1), keep_seconds)
    first_needed = needed[0].number if needed else 0
    newer_bytes = removed = 0
    for one in reversed(found):
        own_bytes = 0 if keep_bytes is None else size(one)
        is_over = keep_bytes is not None and one is not found[-1] and newer_bytes + own_bytes > keep_bytes
        if one.number < before and (one.number < first_needed or is_over):
            one.path.unlink(missing_ok=True)
            removed += 1
        newer_bytes += own_bytes
    return removed
