"""The rows that Spark gets: their schema, and a segment's rows turned into it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from framework.spark.offsets import Cursor, Span, end_of
from framework.spool import segment
from framework.spool.segment import Segment

DDL = (
    "value binary, message_id string, timestamp timestamp, attempts int, topic string, nsqd string, "
    "collector string, segment long, position int"
)
"""(collector, segment, position) is unique and stable. Times are cut to Spark's microseconds."""

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
    """The first row that a broker took at ``time`` (ns since 1970) or later; the end where there is none. Opens every segment of
    before."""
    for one in segments:
        try:
            times = segment.read(one.path, ["timestamp_ns"])["timestamp_ns"]
        except FileNotFoundError:  # a query has read and deleted it just now
            continue
        row = pc.index(pc.greater_equal(times, time), value=True).as_py()
        if row >= 0:
            return Cursor(one.number, row)
    return end_of(segments)


def rows_of(span: Span) -> list[pa.RecordBatch]:
    """The rows of ``span``, read from its file. Raises FileNotFoundError, SpoolError."""
    table = segment.read(span.segment.path).slice(span.first, span.rows)
    columns = {
        **{name: table[name] for name in ("value", "message_id", "attempts", "topic", "nsqd")},
        "timestamp": pc.floor_temporal(table["timestamp_ns"].cast(pa.timestamp("ns", tz="UTC")), unit="microsecond").cast(
            pa.timestamp("us", tz="UTC")
        ),
        "collector": pa.repeat(pa.scalar(span.collector, pa.string()), span.rows),
        "segment": pa.repeat(pa.scalar(span.segment.number, pa.int64()), span.rows),
        "position": pa.array(range(span.first, span.stop), pa.int32()),
    }
    return pa.table([columns[name] for name in ARROW.names], schema=ARROW).to_batches()  # type: ignore[no-any-return]
