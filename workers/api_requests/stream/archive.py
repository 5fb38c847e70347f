"""The channel archive: every line goes to the Parquet of its day, or with a reason to the rejected ones."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from workers.api_requests.stream.parse import COLUMNS, parse, rejects, requests
from workers.api_requests.stream.store import Store


def archive(lines: DataFrame, batch: int, *, archived: Store, rejected: Store) -> tuple[int, int]:
    """Write one batch of ``lines``; returns how many were archived, and how many rejected."""
    parsed = parse(lines).select(*COLUMNS, "raw", "message_id", "reason").persist()
    try:
        good = requests(parsed).withColumn("date", f.to_date("time")).select(*COLUMNS, "raw", "message_id", "date")
        bad = rejects(parsed).select("raw", "reason", f.make_valid_utf8(f.col("raw").cast("string")).alias("line"), "message_id")
        return archived.write(good, batch), rejected.write(bad, batch)
    finally:
        parsed.unpersist()
