"""What the sink's messages carry beside their bodies, by Spark's own tasks and a real nsqd: keys, delays."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.testing.servers import Server
from tests.spark.test_nsqd import collected

pytestmark = [pytest.mark.spark, pytest.mark.real]


def key_of(envelope: bytes) -> str:
    _, line, _ = envelope.split(b"\n", 2)
    key = json.loads(line)["idempotency-key"]
    assert isinstance(key, str)
    return key


@pytest.mark.parametrize("order", [pytest.param("the same order", marks=pytest.mark.long_run), "another order"])
def test_a_batch_that_a_query_repeats_has_the_keys_that_it_had(
    spark: Any, nsqd: Server, land: Callable[..., Path], tmp_path: Path, order: str
) -> None:
    """Also where its rows come in another order, as behind a shuffle: else a row had the key of one that was handled."""
    folder = land(0, 300)

    def turned(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.take(list(range(batch.num_rows))[::-1])

    def run(*steps: Any) -> str:
        rows = spark.readStream.format("nsq").option("spoolDir", str(folder)).option("collector", "external")
        rows = rows.option("minPartitions", 3).load().select("value")
        for step in steps:
            rows = rows.mapInArrow(step, rows.schema)
        query = (
            rows.writeStream.format("nsq").option("broker", f"nsq://{nsqd.address}?headers=true").option("topic", "orders")
            .option("checkpointLocation", str(tmp_path / "sink")).trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(60)
        return str(query.id)

    first = run()
    (tmp_path / "sink" / "commits" / "0").unlink()  # as if it had been killed before its end
    (tmp_path / "sink" / "commits" / ".0.crc").unlink()
    assert run(*[turned] * (order == "another order")) == first
    envelopes = collected(spark, nsqd, tmp_path / "back", "orders")
    assert set(envelopes.values()) == {2}, "each message came twice, with the same key"
    keys = Counter(key.rsplit("-", 1)[0] for key in map(key_of, envelopes))
    assert keys == {f"{first}-0-{partition}": 100 for partition in range(3)}


def test_the_columns_key_and_delay_are_what_each_row_says(spark: Any, nsqd: Server, tmp_path: Path) -> None:
    rows = "concat('row ', id) AS value", "concat('order-', id) AS key", "if(id % 2 = 0, null, id * 100) AS delay"
    sink = spark.range(10).selectExpr(*rows).write.format("nsq").option("topic", "orders").mode("append")
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http("/channel/create?topic=orders&channel=archive", b"")
    with pytest.raises(Exception, match="column key would not be published: name the broker as option broker"):
        sink.option("nsqdTcpAddresses", nsqd.address).save()
    sink = spark.range(10).selectExpr(*rows).write.format("nsq").option("topic", "orders").mode("append")
    sink.option("broker", f"nsq://{nsqd.address}?headers=true").save()
    assert nsqd.channel_stats("orders", "archive")["deferred_count"] == 5
    found = {key_of(envelope): envelope.rpartition(b"\n")[2] for envelope in collected(spark, nsqd, tmp_path / "back", "orders")}
    assert found == {f"order-{n}": b"row %d" % n for n in range(0, 10, 2)}


def test_two_writes_of_one_batch_of_a_query_have_keys_of_their_own(
    spark: Any, nsqd: Server, land: Callable[..., Path], tmp_path: Path
) -> None:
    """Or a handler that skips by keys would take the second for a repeat of the first."""

    def twice(rows: Any, number: int) -> None:
        for prefix in ("a", "b"):
            sink = rows.selectExpr(f"concat('{prefix}', value) AS value").write.format("nsq").mode("append")
            sink.option("broker", f"nsq://{nsqd.address}?headers=true").option("topic", "orders").save()

    lines = spark.readStream.format("nsq").option("spoolDir", str(land(0, 10))).option("collector", "external").load()
    stream = lines.selectExpr("CAST(value AS string) AS value").writeStream.foreachBatch(twice)
    query = stream.option("checkpointLocation", str(tmp_path / "sink")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert len(set(map(key_of, collected(spark, nsqd, tmp_path / "back", "orders")))) == 20
