"""Tables of the output: Parquet that Spark writes and commits, a folder for each batch. A batch that runs again replaces its own
rows, so whoever reads the files, by a glob or by Spark, reads each row once.

Spark's own file sink is exact only for readers that know its log; these files are exact for every reader.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

from framework import FrameworkError
from workers.api_requests.stream.output import Output

_FILES = 2
"""So many files in a folder, of as many tasks, are no reason to move rows between them."""


class NotShared(FrameworkError):
    """What the executors wrote is not where the driver looks."""


class Store:
    """The table ``name``: ``batch=<number>/*.parquet``, in a folder for each value of the column ``by`` where one is named."""

    def __init__(self, output: Output, name: str, *, by: str | None = None) -> None:
        self._output = output
        self._name = name
        self._by = by
        self._cleared: int | None = None

    def write(self, rows: DataFrame, batch: int) -> int:
        """Write the rows of one batch, in place of what an earlier try of the same batch wrote; returns their number.

        Raises NotShared, and leaves nothing of the batch, when the files do not hold the rows that Spark has counted.
        """
        if self._cleared != batch - 1:  # else it has never been tried: this process has just done the one before
            self._clear(batch)
        self._cleared = None
        observed = Observation()
        numbered = self._arranged(rows).withColumn("batch", f.lit(batch)).observe(observed, f.count(f.lit(1)).alias("rows"))
        by = [self._by] if self._by else []
        numbered.write.mode("append").partitionBy(*by, "batch").parquet(self._output.url_of(self._name))
        counted = int(observed.get["rows"])
        there = self._output.rows(self._folders_of(batch))
        if there is not None and there != counted:
            self._clear(batch)
            raise NotShared(
                f"batch {batch}: Spark has written {counted:,} rows into {self._output}/{self._name}, and {there:,} are there: "
                "this folder must be one that the driver and every executor share (--output)"
            )
        self._cleared = batch
        return counted

    def _arranged(self, rows: DataFrame) -> DataFrame:
        """Few files in each folder, of a good size where Spark plans adaptively."""
        if rows.rdd.getNumPartitions() <= _FILES:
            return rows
        return rows.hint("rebalance", self._by) if self._by else rows.coalesce(_FILES)

    def _clear(self, batch: int) -> None:
        """Remove what a try that was broken off has left: rows that are there, and such as the committer would put there with the
        next batch's, because it takes them for its own (docs/spark-upstream.md, 3)."""
        self._output.remove(f"{self._name}/_temporary")
        self._output.remove(self._folders_of(batch))

    def _folders_of(self, batch: int) -> str:
        return f"{self._name}/{self._by}=*/batch={batch}" if self._by else f"{self._name}/batch={batch}"
