"""Spark and a real nsqd: out through the sink, in through the embedded collector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framework.testing.servers import Server

pytestmark = [pytest.mark.spark, pytest.mark.real]


def topic_counts(nsqd: Server) -> dict[str, int]:
    return {topic["topic_name"]: topic["message_count"] for topic in nsqd.http("/stats?format=json")["topics"]}


def collected(spark: Any, nsqd: Server, folder: Path, topic: str) -> Counter[bytes]:
    """What one availableNow run with an embedded collector adds to the Parquet output at ``folder``, and all before."""
    query = (
        spark.readStream.format("nsq").option("spoolDir", str(folder / "spool")).option("topic", topic)
        .option("channel", "archive").option("nsqdTcpAddresses", nsqd.address).load()
        .writeStream.format("parquet").option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(60)
    return Counter(bytes(row.value) for row in spark.read.parquet(str(folder / "rows")).select("value").collect())


def test_what_is_written_to_a_topic_comes_back_through_the_embedded_collector(spark: Any, nsqd: Server, tmp_path: Path) -> None:
    sent = Counter(b"row %d \xc5\xbc" % n for n in range(2500))
    rows = spark.range(2500).selectExpr("concat('row ', id, ' ż') AS value").repartition(2)
    rows.write.format("nsq").option("topic", "orders").option("nsqdTcpAddresses", nsqd.address).mode("append").save()
    assert topic_counts(nsqd) == {"orders": 2500}
    assert collected(spark, nsqd, tmp_path, "orders") == sent
    assert nsqd.channel_stats("orders", "archive")["depth"] == 0

    nsqd.http("/mpub?topic=orders", b"later 1\nlater 2")
    assert collected(spark, nsqd, tmp_path, "orders") == sent + Counter([b"later 1", b"later 2"])
    assert nsqd.channel_stats("orders", "archive")["in_flight_count"] == 0, "the collector ends with its query and holds nothing"


def test_a_stream_is_written_to_the_topics_its_rows_name(
    spark: Any, nsqd: Server, land: Callable[..., Path], tmp_path: Path
) -> None:
    folder = land(0, 900)
    query = (
        spark.readStream.format("nsq").option("spoolDir", str(folder)).option("collector", "external").load()
        .selectExpr("value", "if(position < 300, 'first', 'rest') AS topic")
        .writeStream.format("nsq").option("nsqdTcpAddresses", nsqd.address).option("mpubMaxMessages", 100)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(60)
    assert topic_counts(nsqd) == {"first": 300, "rest": 600}


def test_a_row_that_cannot_be_published_fails_the_task_with_the_reason(spark: Any, nsqd: Server) -> None:
    def write(rows: Any) -> None:
        rows.write.format("nsq").option("topic", "orders").option("nsqdTcpAddresses", nsqd.address).mode("append").save()

    with pytest.raises(Exception, match="1 rows have a null value"):
        write(spark.sql("SELECT CAST(NULL AS string) AS value"))
    with pytest.raises(Exception, match="empty"):
        write(spark.sql("SELECT '' AS value"))
    with pytest.raises(Exception, match="column id would not be published"):
        write(spark.sql("SELECT 'x' AS value, 1 AS id"))
    assert topic_counts(nsqd) == {}
