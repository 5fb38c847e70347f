"""What a task leaves to Spark's daemon, which collects all garbage after each one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from framework.spark import NsqDataSource, options
from framework.spark.reader import NsqBatchReader


def test_a_process_that_is_not_a_worker_of_spark_has_its_garbage_collected_as_before(land: Callable[..., Path]) -> None:
    reader = NsqBatchReader(options.batch_read({"spoolDir": str(land(0, 3))}))
    gc.unfreeze()  # what these tests themselves leave out
    assert sum(rows.num_rows for task in reader.partitions() for rows in reader.read(task)) == 3
    assert gc.get_freeze_count() == 0


class Asked(NsqBatchReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for rows in super().read(partition):
            yield rows.set_column(3, "attempts", pa.array([gc.get_freeze_count()] * rows.num_rows, pa.int32()))


class Asking(NsqDataSource):
    """As format nsq, with how much is left out of the collections in place of the attempts."""

    @classmethod
    def name(cls) -> str:
        return "asking"

    def reader(self, schema: StructType) -> DataSourceReader:
        return Asked(options.batch_read(self.options))


@pytest.mark.spark
def test_a_task_leaves_what_is_loaded_out_of_the_collections_that_come_after_each_task(
    spark: Any, land: Callable[..., Path]
) -> None:
    spark.dataSource.register(Asking)
    rows = spark.read.format("asking").option("spoolDir", str(land(0, 3))).option("maxRecordsPerPartition", 1).load().collect()
    assert sorted(row.position for row in rows) == [0, 1, 2]
    assert min(row.attempts for row in rows) > 10_000
