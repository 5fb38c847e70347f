"""What a segment is: the rows of its Arrow IPC file, and what tells its messages from others. It reads and writes nothing."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from framework.errors import FrameworkError
from framework.spool.seen import Key, key_of
from framework.spool.storage import Location

try:
    import pyarrow as pa
    import pyarrow.compute as pc
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
NUMBER = "(00[0-9]{18})"
"""The pattern of a segment's number in names. What has more digits is no segment's: who went on behind it would come to numbers
that a listing does not find, or that Spark's long cannot hold."""
HIGHEST = 10**18 - 1
_LASTING = b"lasting_ids"
"""In a segment's metadata: the nodes that give no id out again. Segments of earlier versions do not say."""
_LIFE = "@"  # in the ids of beanstalkd's jobs, before what names the life of its server
MARK = b"mark"
"""In the metadata of a segment in a storage: what tells it from one with other rows that was put under the same name."""


class SpoolError(FrameworkError):
    """The spool's folder cannot do what was asked: full, not readable, or not as it was left."""


class Damaged(SpoolError):
    """A file of the spool is not what was landed."""

    what: str
    """Without what to do."""


def check_number(number: int, folder: Location) -> None:
    """Before it is given to a segment. Raises SpoolError for one that no listing would find."""
    if number > HIGHEST:
        raise SpoolError(
            f"spool {folder}: something there has the number {HIGHEST}, which is the last: remove it where it was copied here, "
            "or begin an empty folder"
        )


class Segment(NamedTuple):
    """A segment that is durable. Numbers start at 1 and have no gaps; a higher number landed later."""

    number: int
    rows: int
    path: Location
    size: int | None = None
    """In bytes, where the listing says so; else the file does."""
    landed: float | None = None
    """When, in seconds since 1970; likewise."""
    mark: str = ""
    """Of one in a storage."""
    taken: tuple[int, int] | None = None
    """Likewise: the earliest and the latest time at which a broker took a row, in ns since 1970, where its name says so."""
    first: int | None = None
    """Of a run: the number of the first segment that it holds, ``number`` being that of the last."""
    at: int = 0
    """Of a part of a run: where its rows begin in the file."""
    nodes: frozenset[str] | None = None
    """Of one in a storage: the marks of its rows' nodes (``times.mark_of``), where its name says so."""

    @property
    def begins(self) -> int:
        return self.number if self.first is None else self.first


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


KEY_COLUMNS = ["nsqd", "topic", "message_id", "timestamp_ns"]


def keys_of(table: pa.Table, *, by_node: bool = True) -> list[Key]:
    """What tells a segment's messages from all others; ``table`` has ``KEY_COLUMNS``. ``by_node``: the node is part of it."""
    said = (table.schema.metadata or {}).get(_LASTING)
    lasting = None if said is None else json.loads(said)
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return [
        key_of(
            node if by_node else "", topic, name.encode("latin-1"), at,
            lasting=_LIFE in name if lasting is None else node in lasting,
        )
        for node, topic, name, at in rows
    ]  # fmt: skip


def metadata_of_all(tables: Sequence[pa.Table]) -> dict[bytes, bytes] | None:
    """What the segments ``tables`` say of their nodes together; None where they contradict each other."""
    said = [(one.schema.metadata or {}).get(_LASTING) for one in tables]
    every = [frozenset(json.loads(one)) for one in said if one is not None]
    if len(every) < len(said):
        return None if every else {}
    lasting = frozenset().union(*every)
    for table, own in zip(tables, every, strict=True):
        if own != lasting and lasting & {*pc.unique(table["nsqd"]).to_pylist()} != own:
            return None
    return {_LASTING: json.dumps(sorted(lasting)).encode()}


def write_to(sink: Any, rows: pa.RecordBatch) -> None:
    """``sink``: what pyarrow writes to, a file or a stream."""
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_batch(rows)


def content_of(rows: pa.RecordBatch, mark: str) -> pa.Buffer:
    """The bytes of a segment that bears ``mark``."""
    sink = pa.BufferOutputStream()
    write_to(sink, rows.replace_schema_metadata({**(rows.schema.metadata or {}), MARK: mark.encode()}))
    return sink.getvalue()


def mapped(path: Path) -> pa.Table:
    """All rows of a file, memory mapped. Raises FileNotFoundError, and SpoolError when it is not a segment."""
    if not stat.S_ISREG(status(path).st_mode):
        raise damaged(path, "it is no file")  # a FIFO would be waited for, for ever
    try:
        with pa.memory_map(str(path)) as source:
            return opened(source, path)
    except OSError as error:
        if error.errno is not None:  # in Arrow's words, which do not say it as the system does
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from None
        raise


def status(path: Path) -> os.stat_result:
    """Of a segment's file. Raises FileNotFoundError, and SpoolError where what is there leads to no file."""
    try:
        return path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise damaged(path, "it is a link to itself") from None
        raise


def opened(source: Any, path: Location) -> pa.Table:
    """All rows. ``source``: what pyarrow reads from, a buffer or a file. Raises SpoolError when it is not a segment."""
    try:
        table = pa.ipc.open_file(source).read_all()
        table.validate(full=True)  # what has wrong offsets would end the process
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not of Arrow's: a disk that cannot be read
            raise
        raise damaged(path, str(error)) from error
    there = {field.name: field.type for field in table.schema}
    if not all(there.get(field.name) == field.type for field in SCHEMA):
        raise damaged(path, f"it has the columns {', '.join(there)}, and not those of a segment")
    return table


def damaged(path: Location, why: str) -> Damaged:
    what = f"spool segment {path} is damaged: {why}"
    error = Damaged(
        f"{what}; put a whole copy in its place, or remove it, and say failOnDataLoss=false in queries that have yet to read it"
    )
    error.what = what
    return error
