"""Rows to a topic, many in one MPUB. At least once: a task that Spark runs again publishes again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from framework.errors import WrongUse
from framework.spark.options import WriteOptions

if TYPE_CHECKING:
    from framework.publisher import Publisher


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int


class _Writing:
    """What both writers are: checks at the start, and one publisher for each task."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise WrongUse("format nsq only appends: a topic cannot be overwritten; use mode append")
        _check(schema, options.topic)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish every row; returns when the broker has all of them. Raises PublishError, BadMessage, WrongUse."""
        # Not at the top: who only reads imports this module as well, and may lack gevent.
        from framework.publisher import PATIENT, Publisher  # noqa: PLC0415

        publisher = Publisher(self._options.urls, timeout=PATIENT)
        try:
            return Written(sum(self._publish(publisher, batch) for batch in iterator))
        finally:
            publisher.close()

    def _publish(self, publisher: Publisher, batch: pa.RecordBatch) -> int:
        for topic, bodies in messages(batch, self._options.topic):
            for first in range(0, len(bodies), self._options.mpub_max_messages):
                publisher.publish_many(topic, bodies[first : first + self._options.mpub_max_messages])
        return int(batch.num_rows)


class NsqWriter(_Writing, DataSourceArrowWriter):
    """``df.write.format("nsq")``."""


class NsqStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """``df.writeStream.format("nsq")``."""


def messages(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, list[bytes]]]:
    """The bodies for each topic in turn; a topic's rows stay in order. Raises WrongUse for a null."""
    bodies = _no_nulls(batch, "value").cast(pa.binary()).to_pylist()
    if topic is not None:
        yield topic, bodies
        return
    rows = sorted(zip(_no_nulls(batch, "topic").to_pylist(), bodies, strict=True), key=itemgetter(0))
    for name, group in groupby(rows, key=itemgetter(0)):
        yield name, [body for _, body in group]


def _no_nulls(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if column.null_count:
        raise WrongUse(f"{column.null_count} rows have a null {name}, which cannot be published: filter them out")
    return column


def _check(schema: StructType, topic: str | None) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    if not isinstance(types.get("value"), (StringType, BinaryType)):
        raise WrongUse("format nsq writes a column named value, string or binary: select(to_json(struct('*')).alias('value'))")
    if topic is None and not isinstance(types.get("topic"), StringType):
        raise WrongUse("where to publish is missing: give the option topic, or a string column named topic")
    for name in types:
        if name not in ("value", "topic") or (name == "topic" and topic is not None):
            raise WrongUse(f"column {name} would not be published: put it into value, or drop it")
