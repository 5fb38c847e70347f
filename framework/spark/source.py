"""``format("nsq")``: the four ways in and out, for Spark to call; what they do is in the reader and the writer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from framework.errors import WrongUse
from framework.spark import options
from framework.spark.advice import OF_STREAM, Advice
from framework.spark.reader import NsqBatchReader, NsqStreamReader
from framework.spark.rows import DDL, asked
from framework.spark.sent import Sent
from framework.spark.writer import NsqStreamWriter, NsqWriter


class NsqDataSource(Sent, DataSource):
    """NSQ as a source, through a spool, and as a sink, through MPUB.

    Spark makes and pickles readers and writers in several processes, so nothing here connects or touches a disk.
    """

    advice: ClassVar = OF_STREAM

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> str:
        options.check_any(self.options)
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return NsqBatchReader(replace(options.batch_read(self.options), columns=asked(schema)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        try:
            given = options.stream_read(self.options)
            return NsqStreamReader(replace(given, columns=asked(schema), advice=self.advice))
        except WrongUse as error:
            return _Refused(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return NsqWriter(options.write(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return NsqStreamWriter(options.write(self.options), schema, overwrite)


class _Refused(DataSourceStreamReader):
    """Raises ``error`` when it is called. After what ``streamReader`` raises itself, Spark stops the reader that it has not got,
    and ends with an UnboundLocalError."""

    def __init__(self, error: WrongUse) -> None:
        self._error = error

    def _refuse(self, *_: Any) -> Any:
        raise self._error

    initialOffset: Any = _refuse  # noqa: N815 (Spark's names)
    latestOffset: Any = _refuse  # noqa: N815
    partitions: Any = _refuse
    read: Any = _refuse


def named(name: str, *, spool: str = OF_STREAM.spool, lost: str = OF_STREAM.lost) -> type[NsqDataSource]:
    """The source as ``format(name)``, to be registered: ``spark.dataSource.register(named("nsq_orders"))``.

    For each of several streaming queries that are started in one session at the same time. Spark lets those of one name put the
    same variables into one map of Java's, each when it begins; where two do so at once, no task of any of them can be read from
    then on (docs/spark-upstream.md, 5).

    ``spool``, ``lost``: for a program that starts the query for its user, who has other options. What errors of a stream call the
    option that names the spool, and how they say to go on without rows that are lost.
    """
    return type("NamedSource", (NsqDataSource,), {"name": classmethod(lambda _: name), "advice": Advice(spool, lost)})
