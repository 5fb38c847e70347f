"""The rows that Spark gets: their schema, and a segment's rows turned into it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from framework.errors import BadSetting
from framework.spark.offsets import Cursor, Span, end_of
from framework.spool import segment
from framework.spool.arrow import damaged
from framework.spool.runs import PLACE
from framework.spool.segment import Segment

DDL = (
    "value binary, message_id string, timestamp timestamp_ltz, attempts int, topic string, nsqd string, "
    "collector string, segment long, position int"
)
"""(collector, segment, position) is unique and stable. Times are cut to Spark's microseconds. The type ``timestamp`` is
what ``spark.sql.timestampType`` says."""
_TYPES = dict(one.split() for one in DDL.split(", "))

# Spark compares types exactly, and only those of the first batch: a wrong later one is read as garbage.
ARROW = pa.schema(
    [
        ("value", pa.binary()),
        ("message_id", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("attempts", pa.int32()),
        ("topic", pa.string()),
        ("nsqd", pa.string()),
        ("collector", pa.string()),
        ("segment", pa.int64()),
        ("position", pa.int32()),
    ]
)


def first_since(segments: Sequence[Segment], time: int) -> Cursor:
    """The first row that a broker took at ``time`` (ns since 1970) or later; the end where there is none.

    It looks into one segment, and into those before of which no times are known.
    """
    known = segment.times_of(segments[0].path.parent, segments) if segments else {}
    for one in segments:
        if one.number in known and known[one.number].last < time:
            continue
        try:
            table = segment.read(one.path)
            times = table["timestamp_ns"]
        except FileNotFoundError:  # a query has read and deleted it just now
            continue
        row = pc.index(pc.greater_equal(times, time), value=True).as_py()
        if row >= 0:
            return Cursor(one.number, row) if one.first is None else Cursor(*(table[name][row].as_py() for name in PLACE))
    return end_of(segments)


def asked(schema: StructType) -> tuple[str, ...]:
    """The columns of ``schema``, which a query may give: fewer cost less. Raises BadSetting for those that it does not have."""
    whole = {field.name: field.dataType for field in from_arrow_schema(ARROW).fields}
    for field in schema.fields:
        if field.name not in whole:
            raise BadSetting(f"schema: format nsq has no column {field.name}; it has {DDL}")
        if field.dataType != whole[field.name]:
            wrong = field.dataType.simpleString()
            raise BadSetting(f"schema: column {field.name} is {_TYPES[field.name]}, and not {wrong}")
    return tuple(schema.fieldNames())


def rows_of(span: Span, names: Sequence[str] | None = None) -> list[pa.RecordBatch]:
    """The rows of ``span``, read from its file, with the columns ``names``, or all. Raises FileNotFoundError, SpoolError."""
    table = segment.read(span.segment.path)
    first = span.segment.at + span.first
    if table.num_rows < first + span.rows:
        raise damaged(span.segment.path, f"it has {table.num_rows} rows, and was to have {span.segment.rows}")
    table = table.slice(first, span.rows)
    names = ARROW.names if names is None else names
    columns = [_kept(name, table) if name in table.column_names or name == "timestamp" else _made(name, span) for name in names]
    return pa.table(columns, schema=pa.schema([ARROW.field(name) for name in names])).to_batches()  # type: ignore[no-any-return]


def _made(name: str, span: Span) -> pa.Array:
    if name == "collector":
        return pa.repeat(pa.scalar(span.collector, pa.string()), span.rows)
    if name == "segment":
        return pa.repeat(pa.scalar(span.segment.number, pa.int64()), span.rows)
    return _counted(-(-span.stop // _AT_ONCE) * _AT_ONCE).slice(span.first, span.rows)


_AT_ONCE = 4096


@lru_cache(8)
def _counted(stop: int) -> pa.Array:
    """0, 1, 2, … below ``stop``. Kept, as making it takes a third of the time of a segment."""
    return pa.array(range(stop), pa.int32())


def _kept(name: str, table: pa.Table) -> pa.ChunkedArray:
    if name != "timestamp":
        return table[name]
    return pc.divide(table["timestamp_ns"], 1000).cast(pa.timestamp("us", tz="UTC"))
