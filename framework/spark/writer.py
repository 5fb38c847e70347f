"""Rows to a topic, many in one MPUB. At least once: a task that Spark runs again publishes again, with the same keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, NumericType, StringType, StructType

from framework.errors import WrongUse
from framework.spark.options import WriteOptions
from framework.spark.outgoing import COLUMNS, RowKeys, runs
from framework.spark.sent import Sent, lacks

if TYPE_CHECKING:
    from framework.spark.publishing import RowPublisher

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""What Spark calls the query and the batch of a task; the query's id is kept in its checkpoint."""


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int


class _Writing(Sent):
    """What both writers are: checks at the start, and one publisher for each task."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise WrongUse("format nsq only appends: a topic cannot be overwritten; use mode append")
        _check(schema, options)
        self._options = options
        self._makes_keys = options.keys and "key" not in schema.names
        self._write = uuid4().hex
        """Made on the driver, so it is the same in each try of a task."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish every row; returns when the broker has all of them. Raises PublishError, BadMessage, WrongUse."""
        # Not at the top: who only reads imports this module as well, and may lack gevent.
        try:
            from framework.publisher import PATIENT  # noqa: PLC0415
            from framework.spark.publishing import RowPublisher  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise lacks(error) from None

        keys = RowKeys(self._task()) if self._makes_keys else None
        publisher = RowPublisher(self._options.urls, timeout=PATIENT)
        try:
            return Written(sum(self._publish(publisher, batch, keys) for batch in iterator))
        finally:
            publisher.close()

    def _publish(self, publisher: RowPublisher, batch: pa.RecordBatch, made: RowKeys | None) -> int:
        most = self._options.mpub_max_messages
        every = list(runs(batch, self._options.topic, made))
        for run in every:  # before anything is published: it would be once more with each try of the task
            publisher.check(run.topic, run.bodies, delay=run.delay)
        for run in every:
            for first in range(0, len(run.bodies), most):
                part = slice(first, first + most)
                keys = None if run.keys is None else run.keys[part]
                publisher.publish_rows(run.topic, run.bodies[part], keys, delay=run.delay)
        return int(batch.num_rows)

    def _task(self) -> str:
        """What each try of this task has in common, and no other task has."""
        context = TaskContext.get()
        if context is None:
            raise WrongUse("the rows are written outside of a task of Spark: call write() of the DataFrame")
        return f"{self._whole(context)}-{context.partitionId()}"

    def _whole(self, context: TaskContext) -> str:
        return self._write


class NsqWriter(_Writing, DataSourceArrowWriter):
    """``df.write.format("nsq")``. In ``foreachBatch`` its tasks have a query and a batch, as those of other writes there have."""


class NsqStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """``df.writeStream.format("nsq")``."""

    def _whole(self, context: TaskContext) -> str:
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        return self._write if query is None or batch is None else f"{query}-{batch}"


def _check(schema: StructType, options: WriteOptions) -> None:
    types = {field.name: field.dataType for field in schema.fields}
    if not isinstance(types.get("value"), (StringType, BinaryType)):
        raise WrongUse("format nsq writes a column named value, string or binary: select(to_json(struct('*')).alias('value'))")
    if options.topic is None and not isinstance(types.get("topic"), StringType):
        raise WrongUse("where to publish is missing: give the option topic, or a string column named topic")
    if "key" in types and not isinstance(types["key"], StringType):
        raise WrongUse("column key is to be a string: cast it, as by col('key').cast('string')")
    if "key" in types and not options.keys:
        raise WrongUse(f"column key would not be published: {options.without_keys}, or drop it")
    if "delay" in types and not isinstance(types["delay"], NumericType):
        raise WrongUse("column delay is to be a number of seconds: cast it, as by col('delay').cast('double')")
    for name in types:
        if name not in COLUMNS or (name == "topic" and options.topic is not None):
            raise WrongUse(f"column {name} would not be published: put it into value, or drop it")
