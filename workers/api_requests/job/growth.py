"""The channel growth: requests, distinct and new addresses by hour and by day, exact whatever order the lines came in.

The state is one row for each hour and address, so counts of distinct addresses are counts and no estimates, and an
address is new in an hour when it was not seen in the year before: a line of long ago changes its own periods alone. The
watermark (the latest event time, none later than the queue took it, less LATENESS) says which hours and days are complete;
a line that comes later still is counted, because a growth curve that drops lines is wrong for ever.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from workers.api_requests.job.store import Store, write_file

LATENESS = "1 hour"
_FORGOTTEN = "365 days"  # after so long an address is new again
_FILES = 60  # so many small files before they are merged into one


def count(requests: DataFrame, batch: int, *, state: Store, output: Path) -> None:
    """Add one batch of parsed ``requests`` and write ``by_hour.parquet`` and ``by_day.parquet`` anew."""
    hourly = requests.groupBy(f.date_trunc("hour", "time").alias("hour"), "address").agg(
        f.count(f.lit(1)).alias("requests"), f.max(f.least("time", "timestamp")).alias("latest")
    )  # fmt: skip
    state.write(hourly, batch)
    known = state.read(requests.sparkSession)
    if known is None:
        return
    together = (
        known.groupBy("hour", "address").agg(f.sum("requests").alias("requests"), f.max("latest").alias("latest")).persist()
    )
    write_file(output / "by_hour.parquet", by_hour(together).toArrow())
    write_file(output / "by_day.parquet", by_day(together).toArrow())
    if state.count_files() > _FILES:
        state.merge(together, batch)
    together.unpersist()


def by_hour(hourly: DataFrame) -> DataFrame:
    """hour, requests, addresses, new_addresses, complete."""
    return _grown(hourly, f.col("hour"), "hour", f.expr("INTERVAL 1 HOUR"))


def by_day(hourly: DataFrame) -> DataFrame:
    """date, requests, addresses, new_addresses, complete, and the change from the day before as a share (0.5: half more)."""
    grown = _grown(hourly, f.to_date("hour"), "date", f.expr("INTERVAL 1 DAY"))
    before = Window.orderBy("date")
    yesterday = f.when(f.lag("date").over(before) == f.date_sub("date", 1), f.lag("requests").over(before))
    return grown.withColumn("change", f.col("requests") / yesterday - 1)


def _grown(hourly: DataFrame, period: Column, name: str, length: Column) -> DataFrame:
    before = f.lag("hour").over(Window.partitionBy("address").orderBy("hour"))
    is_first = f.coalesce(f.col("hour") - before > f.expr(f"INTERVAL {_FORGOTTEN}"), f.lit(True))
    marked = hourly.withColumn(name, period).withColumn("is_first", is_first)
    watermark = hourly.agg((f.max("latest") - f.expr(f"INTERVAL {LATENESS}")).alias("watermark"))
    return (
        marked.groupBy(name)
        .agg(
            f.sum("requests").alias("requests"),
            f.count_distinct("address").alias("addresses"),
            f.count_if("is_first").alias("new_addresses"),
        )
        .crossJoin(f.broadcast(watermark))
        .withColumn("complete", f.col(name).cast("timestamp") + length <= f.col("watermark"))
        .drop("watermark")
        .orderBy(name)
    )
