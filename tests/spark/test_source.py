"""The source in a real session: the rows of a spool, once each, in batches of the size asked for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from framework.message import Batch, Message
from framework.spool import Spool, segment
from tests.origins import Source
from workers.api_requests.stream.session import Session

pytestmark = pytest.mark.spark
Land = Callable[..., Path]


def external(reader: Any, folder: Path, **options: Any) -> Any:
    reader = reader.format("nsq").option("spoolDir", str(folder))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader


def run_available(spark: Any, folder: Path, out: Path, **options: Any) -> list[int]:
    """One availableNow run into Parquet at ``out``; the sizes of its batches."""
    rows = external(spark.readStream, folder, collector="external", **options).load()
    query = (
        rows.writeStream.format("parquet").option("path", str(out / "rows")).option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(60)
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def ids(spark: Any, out: Path) -> Counter[str]:
    return Counter(row.message_id for row in spark.read.parquet(str(out / "rows")).select("message_id").collect())


def test_a_query_that_names_its_columns_is_sent_no_others(spark: Any, land: Land, tmp_path: Path) -> None:
    folder = land(0, 3)
    schema = "position int, value binary"
    rows = external(spark.read, folder).schema(schema).load()
    assert rows.dtypes == [("position", "int"), ("value", "binary")]
    assert sorted((row.position, bytes(row.value)) for row in rows.collect()) == [(0, b"m0"), (1, b"m1"), (2, b"m2")]
    stream = external(spark.readStream, folder, collector="external").schema("timestamp timestamp, value binary").load()
    query = (
        stream.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(60)
    found = spark.read.parquet(str(tmp_path / "rows"))
    assert (found.count(), found.columns) == (3, ["timestamp", "value"])
    for wrong, words in (
        ("value string", "schema: column value is binary, and not string"),
        ("key binary", "schema: format nsq has no column key; it has value binary, message_id string"),
    ):
        with pytest.raises(Exception, match=words):
            external(spark.read, folder).schema(wrong).load().collect()


def test_a_session_whose_timestamps_have_no_zone_reads_the_same(spark: Any, land: Land, tmp_path: Path) -> None:
    folder = land(0, 3)
    own = spark.newSession()
    own.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    rows = external(own.read, folder).load()
    assert (dict(rows.dtypes)["timestamp"], rows.count()) == ("timestamp", 3)
    assert [*run_available(own, folder, tmp_path)] == [3]
    with pytest.raises(Exception, match="schema: column timestamp is timestamp_ltz, and not timestamp_ntz"):
        external(own.read, folder).schema("timestamp timestamp_ntz").load().count()


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_the_last_line_of_an_error_is_what_is_wrong_with_a_streams_options(
    spark: Any, land: Land, tmp_path: Path, has_checkpoint: bool
) -> None:
    folder = land(0, 3)
    if has_checkpoint:
        run_available(spark, folder, tmp_path)
    with pytest.raises(Exception, match="option topic has no effect") as caught:
        run_available(spark, folder, tmp_path, topic="orders")
    said = [line for line in str(caught.value).splitlines() if line.startswith(("framework.", "UnboundLocalError"))]
    assert said == [
        "framework.errors.BadSetting: option topic has no effect with collector=external: leave it out, or say collector=embedded"
    ]


def test_the_rows_are_exactly_what_was_landed(spark: Any, land: Land) -> None:
    body = bytes(range(256)) + "żółw 🐢\n".encode()
    land(0, 1, body=lambda n: body)
    folder = land(1, 3, "b", node="other:4150", topic="näm".encode().hex())
    rows = external(spark.read, folder).load()
    assert rows.dtypes == [
        ("value", "binary"), ("message_id", "string"), ("timestamp", "timestamp"), ("attempts", "int"), ("topic", "string"),
        ("nsqd", "string"), ("collector", "string"), ("segment", "bigint"), ("position", "int"),
    ]  # fmt: skip
    first, second, third = (row.asDict() for row in rows.orderBy("message_id").collect())
    assert bytes(first.pop("value")) == body
    when = first.pop("timestamp").astimezone(UTC)
    assert when == datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123456)
    assert first == {
        "message_id": "0" * 16, "attempts": 1, "topic": "orders", "nsqd": "127.0.0.1:4150",
        "collector": "a", "segment": 1, "position": 0,
    }  # fmt: skip
    assert (second["collector"], second["segment"], second["position"], second["nsqd"]) == ("b", 1, 0, "other:4150")
    assert (third["position"], bytes(third["value"])) == (1, b"m2")


def test_a_filter_leaves_out_segments_where_the_session_tells_of_it_and_is_no_error_where_not(spark: Any, tmp_path: Path) -> None:
    taken = [datetime(2024, 6, 1, hour, 30, tzinfo=UTC) for hour in range(4)]
    with Spool(tmp_path, "a") as spool:
        for time in taken:
            spool.land(Batch([Message(b"%016x" % time.hour, int(time.timestamp()) * 10**9, 1, b"m", Source())]))

    def rows() -> Any:
        hour = "timestamp >= '2024-06-01T02:00:00Z' AND timestamp < '2024-06-01T03:00:00Z' AND nsqd = '127.0.0.1:4150'"
        return external(spark.read, tmp_path).load().where(hour)

    assert [row.segment for row in rows().collect()] == [3]
    for one in segment.listing(tmp_path / "a"):
        if one.number != 3:
            Path(str(one.path)).write_bytes(b"whoever opens this fails")
    with pytest.raises(Exception, match="is damaged"):
        rows().collect()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert [row.segment for row in rows().collect()] == [3]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_an_empty_spool_has_no_rows_and_the_schema(spark: Any, tmp_path: Path) -> None:
    Spool(tmp_path / "s").open()
    assert external(spark.read, tmp_path / "s").load().count() == 0


def test_partitions_are_as_many_as_asked_and_lose_no_row(spark: Any, land: Land) -> None:
    for n in range(0, 100, 10):
        folder = land(n, n + 10)
    rows = external(spark.read, folder, minPartitions=7).load()
    assert rows.rdd.getNumPartitions() == 7
    assert rows.select("message_id").distinct().count() == rows.count() == 100
    assert external(spark.read, folder, maxRecordsPerPartition=30).load().rdd.getNumPartitions() == 4


def test_available_now_reads_what_is_there_in_batches_of_the_size_asked_for(spark: Any, land: Land, tmp_path: Path) -> None:
    for n in range(0, 1000, 250):
        folder = land(n, n + 250)
    assert run_available(spark, folder, tmp_path, maxMessagesPerTrigger=300) == [300, 300, 300, 100]
    assert ids(spark, tmp_path) == Counter(f"{n:016x}" for n in range(1000))


def test_a_restart_goes_on_where_the_checkpoint_is(spark: Any, land: Land, tmp_path: Path) -> None:
    folder = land(0, 100)
    land(0, 50, "b", node="b:1")
    assert run_available(spark, folder, tmp_path) == [150]
    land(100, 130)
    land(0, 7, "late", node="c:1")
    assert run_available(spark, folder, tmp_path, minPartitions=3) == [37]
    assert run_available(spark, folder, tmp_path, minPartitions=5) == [], "nothing new is no batch"
    rows = spark.read.parquet(str(tmp_path / "rows"))
    assert rows.count() == rows.select("collector", "segment", "position").distinct().count() == 187


def test_a_batch_that_was_planned_and_not_committed_is_planned_the_same_again(spark: Any, land: Land, tmp_path: Path) -> None:
    folder = land(0, 100)
    run_available(spark, folder, tmp_path, maxMessagesPerTrigger=40)
    for log in (tmp_path / "checkpoint" / "commits", tmp_path / "rows" / "_spark_metadata"):
        (log / "2").unlink()
        (log / ".2.crc").unlink(missing_ok=True)
    land(100, 200)
    assert run_available(spark, folder, tmp_path, maxMessagesPerTrigger=1000) == [20, 100]
    assert ids(spark, tmp_path) == Counter(f"{n:016x}" for n in range(200))


def test_a_batch_that_fails_finds_its_rows_again_and_what_all_batches_read_is_deleted(
    spark: Any, land: Land, tmp_path: Path
) -> None:
    for n in range(0, 100, 10):
        folder = land(n, n + 10)
    done: list[str] = []
    left: list[int] = []

    def process(rows: Any, batch: int) -> None:
        left.append(len(segment.listing(folder / "a")))
        assert batch != 2 or len(left) > 3, "fails once"
        done.extend(row.message_id for row in rows.collect())

    rows = external(spark.readStream, folder, collector="external", retention="commit", dedupeWindow=1, maxMessagesPerTrigger=30)
    stream = rows.load().writeStream.foreachBatch(process).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match="fails once"):
        stream.trigger(availableNow=True).start().awaitTermination(60)
    assert stream.trigger(availableNow=True).start().awaitTermination(60)
    assert sorted(done) == [f"{n:016x}" for n in range(100)]
    assert left == [10, 7, 4, 4, 1]
    assert len(segment.listing(folder / "a")) == 1, "without a next batch"


def test_a_running_query_sees_what_lands_and_a_new_collector(spark: Any, land: Land, tmp_path: Path) -> None:
    folder = land(0, 10)
    rows = external(spark.readStream, folder, collector="external").load()
    query = rows.writeStream.format("memory").queryName("running").start()
    try:
        query.processAllAvailable()
        land(10, 20)
        land(0, 5, "b", node="b:1")
        for _ in range(2):  # Spark's first answer may be of a look that was under way before
            query.processAllAvailable()
        assert spark.table("running").groupBy("collector").count().orderBy("collector").collect() == [("a", 20), ("b", 5)]
        assert json.loads(query.lastProgress.json)["sources"][0]["latestOffset"]["collectors"] == {"a": [3, 0], "b": [2, 0]}
    finally:
        query.stop()


def test_another_spool_under_an_old_checkpoint_is_an_error(spark: Any, land: Land, tmp_path: Path) -> None:
    folder = land(0, 10)
    run_available(spark, folder, tmp_path)
    (folder / "epoch").write_text("another\n")
    with pytest.raises(Exception, match="not the spool that the checkpoint knows"):
        run_available(spark, folder, tmp_path)
    assert run_available(spark, folder, tmp_path, failOnDataLoss="false") == [10], "it begins anew on the new spool"


def test_a_wrong_option_fails_the_load_with_one_sentence(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="did you mean maxMessagesPerTrigger"):
        external(spark.readStream, tmp_path, maxMessagePerTriger=5).load()
    with pytest.raises(Exception, match="NSQ cannot replay"):
        external(spark.readStream, tmp_path, endingTimestamp="1").load()
    with pytest.raises(Exception, match="there is no spool in this folder"):
        external(spark.read, tmp_path / "typo").load().count()
    assert not (tmp_path / "typo").exists()


def test_each_query_of_the_job_has_a_map_of_variables_of_its_own_which_spark_changes_when_it_begins(
    spark: Any, land: Land
) -> None:
    """Where two begin at once, one that they share is spoilt, and no task of theirs can be read: docs/spark-upstream.md, 5."""
    folder = land(0, 10)
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    taken = Session(spark)
    variables = []
    for query in ("one", "two", "one"):
        name = taken.source_of(query)
        assert spark.read.format(name).option("spoolDir", str(folder)).load().count() == 10
        variables.append(manager.lookupDataSource(name).dataSourceCls().envVars())
    for number, one in enumerate(variables):
        one.put("OF", str(number))
    assert [one.get("OF") for one in variables] == ["0", "1", "2"]
