"""The sink without Spark: what is refused, and how rows become publishes."""

from __future__ import annotations

import pickle
import tracemalloc
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark import TaskContext
from pyspark.sql.types import BinaryType, DoubleType, IntegerType, StringType, StructType

from framework import publisher
from framework.errors import BadMessage, BadSetting, PublishError, WrongUse
from framework.spark import options
from framework.spark.outgoing import RowKeys, Run, runs
from framework.spark.publishing import RowPublisher
from framework.spark.writer import NsqStreamWriter, NsqWriter
from framework.testing.servers import ROOT
from framework.transports.contract import Capabilities
from framework.transports.memory.broker import MemoryBroker
from framework.transports.memory.transport import MemoryProducer, MemoryTransport

TO_A = options.write({"nsqdTcpAddresses": "127.0.0.1:1", "topic": "a"})
WITH_KEYS = options.write({"broker": "nsq://127.0.0.1:1?headers=true", "topic": "a"})
ANYWHERE = options.write({"nsqdTcpAddresses": "127.0.0.1:1"})


def test_strings_and_bytes_become_bodies() -> None:
    rows = pa.record_batch({"value": ["a", "ż"]})
    assert list(runs(rows, "t")) == [Run("t", 0.0, [b"a", "ż".encode()], None)]
    rows = pa.record_batch({"value": [b"\x00\xff"]})
    assert list(runs(rows, "t")) == [Run("t", 0.0, [b"\x00\xff"], None)]


def test_rows_go_to_the_topics_they_name_in_their_order() -> None:
    rows = pa.record_batch({"topic": ["b", "a", "b"], "value": ["1", "2", "3"]})
    assert list(runs(rows, None)) == [Run("a", 0.0, [b"2"], None), Run("b", 0.0, [b"1", b"3"], None)]


def test_rows_wait_for_the_seconds_they_name_with_their_keys() -> None:
    rows = pa.record_batch({"delay": [1.5, None, 1.5, 0.0], "value": ["1", "2", "3", "4"], "key": ["a", "b", "c", "d"]})
    assert list(runs(rows, "t")) == [Run("t", 0.0, [b"2", b"4"], ["b", "d"]), Run("t", 1.5, [b"1", b"3"], ["a", "c"])]
    whole = pa.record_batch({"delay": pa.array([2, 2], pa.int16()), "value": ["1", "2"]})
    assert list(runs(whole, "t")) == [Run("t", 2.0, [b"1", b"2"], None)]


def keyed(*batches: list[tuple[str, str]]) -> Counter[tuple[str, bytes, str]]:
    """The topic, body and key of each row of a task."""
    keys = RowKeys("task")
    found = Counter[tuple[str, bytes, str]]()
    for rows in batches:
        batch = pa.record_batch({"topic": [topic for topic, _ in rows], "value": [value for _, value in rows]})
        for run in runs(batch, None, keys):
            found.update((run.topic, body, key) for body, key in zip(run.bodies, run.keys or (), strict=True))
    return found


def test_rows_without_keys_have_the_same_in_whatever_order_and_batches_they_come() -> None:
    rows = [("a", "1"), ("b", "1"), ("a", "2"), ("a", "1"), ("b", "2"), ("a", "1"), ("a", ""), ("ab", "1")]
    once = keyed(rows)
    assert len(once) == len({key for _, _, key in once}) == len(rows), "each row has a key of its own, equal ones as well"
    assert keyed(rows[::-1]) == once
    assert keyed(rows[5:], rows[:2], rows[2:5]) == once
    other = keyed([(topic, f"{value}.") for topic, value in rows])
    assert not {key for _, _, key in once} & {key for _, _, key in other}, "no row has the key of another"
    assert {key.partition("-")[0] for _, _, key in once} == {"task"}


def test_a_row_keeps_the_key_that_earlier_versions_gave_it() -> None:
    """Or a batch that is repeated after an update would be handled twice."""
    keys = RowKeys("task")
    first = "task-902a7e1237f375f9588bac15"
    assert keys.take([b"1", b"x" * 300], None) == [first, "task-9ad2747ceb9b59a561cf6584"]
    assert keys.take([b"1", b"1", b"3"], None) == [f"{first}-1", f"{first}-2", "task-6238c1f0b6c9936990c21473"]
    named = ["task-a6cbb202b852a6f3742b3a21", "task-cd23b7a241b8a77fb2305a57"]
    assert RowKeys("task").take([b"1", b"2"], ["a", "orders." * 12]) == named
    assert RowKeys("task").take([b"1", b"1"], ["a", "a"]) == [named[0], f"{named[0]}-1"]


def test_what_a_key_takes_in_memory_is_what_the_page_says() -> None:
    keys, bodies = RowKeys("task"), [b"%d" % n for n in range(200_000)]
    tracemalloc.start()
    try:
        keys.take(bodies, None)
        each = tracemalloc.get_traced_memory()[0] / len(bodies)
    finally:
        tracemalloc.stop()
    assert 60 < each < 120  # a set doubles at times: by how many there are
    assert "about 90 bytes of memory for each of its rows" in (ROOT / "docs" / "spark.md").read_text().replace("\n  ", " ")


@pytest.mark.parametrize("column", ["value", "key"])
def test_a_null_is_refused(column: str) -> None:
    rows = pa.record_batch({"value": ["a", "b"], "key": ["a", "b"], column: ["a", None]})
    with pytest.raises(WrongUse, match=f"1 rows have a null {column}"):
        list(runs(rows, "t"))


@pytest.mark.parametrize("key", ["", "a\nb", "\x85"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(WrongUse, match="1 rows have a key that is no text of one line"):
        list(runs(pa.record_batch({"value": ["a", "b"], "key": [key, "ż"]}), "t"))


@pytest.mark.parametrize("column", ["key", "topic"])
def test_a_text_of_other_bytes_is_refused_where_it_has_to_be_utf_8(column: str) -> None:
    """As Spark makes it by ``CAST(binary AS STRING)``. A value goes out as it is."""
    latin = pa.array([b"caf\xe9", b"b"]).view(pa.string())
    rows = pa.record_batch({"value": latin, "topic": ["a", "b"], "key": ["a", "b"]})
    assert [run.bodies for run in runs(rows, None)] == [[b"caf\xe9"], [b"b"]]
    with pytest.raises(WrongUse, match=f"a row has a {column} that is no UTF-8"):
        list(runs(rows.set_column(rows.schema.get_field_index(column), column, latin), None))


@pytest.mark.parametrize("writer", [NsqWriter, NsqStreamWriter])
def test_what_cannot_be_written_is_refused_at_the_start(writer: type[NsqWriter]) -> None:
    value = StructType().add("value", StringType())
    writer(TO_A, value, False)
    writer(ANYWHERE, StructType().add("value", BinaryType()).add("topic", StringType()), False)
    with pytest.raises(WrongUse, match="only appends"):
        writer(TO_A, value, True)
    with pytest.raises(WrongUse, match="a column named value"):
        writer(TO_A, StructType().add("value", IntegerType()), False)
    with pytest.raises(WrongUse, match="give the option topic, or a string column"):
        writer(ANYWHERE, value, False)
    with pytest.raises(WrongUse, match="column user would not be published"):
        writer(TO_A, StructType().add("value", StringType()).add("user", StringType()), False)
    with pytest.raises(WrongUse, match="column topic would not be published"):
        writer(TO_A, StructType().add("value", StringType()).add("topic", StringType()), False)
    with pytest.raises(WrongUse, match="column delay is to be a number of seconds"):
        writer(TO_A, StructType().add("value", StringType()).add("delay", StringType()), False)
    with pytest.raises(WrongUse, match="column key would not be published: name the broker as option broker"):
        writer(TO_A, StructType().add("value", StringType()).add("key", StringType()), False)
    with pytest.raises(WrongUse, match="column key is to be a string"):
        writer(WITH_KEYS, StructType().add("value", StringType()).add("key", IntegerType()), False)
    writer(WITH_KEYS, StructType().add("value", StringType()).add("key", StringType()).add("delay", IntegerType()), False)


class Broker:
    """A transport and its producer, which refuses the topic ``full``."""

    capabilities = Capabilities(touch=True, attempts=True, fan_out=True, max_requeue=3600.0, max_defer=3600.0)

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[bytes]]] = []
        self.closed = False

    def producer(self) -> Broker:
        return self

    def publish(self, topic: str, bodies: list[bytes], *, timeout: float) -> None:
        if topic == "full":
            raise PublishError("no nsqd took the messages")
        self.sent.append((topic, bodies))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(publisher, "open_transports", lambda urls: [broker])
    return broker


def test_a_task_publishes_in_mpubs_of_the_size_asked_for(broker: Broker) -> None:
    write = options.write({"nsqdTcpAddresses": "127.0.0.1:1", "topic": "a", "mpubMaxMessages": "2"})
    rows = [pa.record_batch({"value": ["1", "2", "3"]}), pa.record_batch({"value": ["4"]})]
    assert NsqWriter(write, StructType().add("value", StringType()), False).write(iter(rows)).rows == 4
    assert broker.sent == [("a", [b"1", b"2"]), ("a", [b"3"]), ("a", [b"4"])]
    assert broker.closed


def test_a_publish_that_fails_fails_the_task_and_closes_the_producer(broker: Broker) -> None:
    schema = StructType().add("value", StringType()).add("topic", StringType())
    with pytest.raises(PublishError, match="no nsqd took"):
        NsqWriter(ANYWHERE, schema, False).write(iter([pa.record_batch({"value": ["1"], "topic": ["full"]})]))
    assert broker.closed


@pytest.mark.parametrize(
    ("column", "bad"), [("topic", "no topic!"), ("topic", ""), ("delay", -1.0), ("delay", 1e9), ("value", "")]
)
def test_nothing_is_published_of_rows_with_one_that_cannot_be(broker: Broker, column: str, bad: Any) -> None:
    """It would be once more with each try of the task."""
    rows = {"value": ["1", "2", "3"], "topic": ["a", "b", "c"], "delay": [0.0, 0.0, 0.0]}
    rows[column][1] = bad
    schema = StructType().add("value", StringType()).add("topic", StringType()).add("delay", DoubleType())
    with pytest.raises((WrongUse, BadMessage)):
        NsqWriter(ANYWHERE, schema, False).write(iter([pa.record_batch(rows)]))
    assert broker.sent == []


def test_keys_come_where_headers_do_and_are_refused_elsewhere() -> None:
    assert not TO_A.keys
    assert WITH_KEYS.keys
    assert options.write({"broker": "nats://127.0.0.1:1", "topic": "a"}).keys
    assert not options.write({"broker": "nats://127.0.0.1:1", "topic": "a", "idempotencyKey": "false"}).keys
    with pytest.raises(BadSetting, match="idempotencyKey=true: this broker carries no headers: name the broker as option broker"):
        options.write({"nsqdTcpAddresses": "127.0.0.1:1", "topic": "a", "idempotencyKey": "true"})
    with pytest.raises(BadSetting, match="carries no headers: add headers=true to the broker URL"):
        options.write({"broker": "nats://127.0.0.1:1 nsq://127.0.0.1:1", "topic": "a", "idempotencyKey": "true"})


def test_every_try_of_a_task_has_the_same_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryBroker("memory://sink")
    monkeypatch.setattr(publisher, "open_transports", lambda urls: [MemoryTransport([memory])])
    writer = NsqWriter(WITH_KEYS, StructType().add("value", StringType()), False)
    for _ in range(2):
        monkeypatch.setattr(TaskContext, "get", lambda: Task({}))
        pickle.loads(pickle.dumps(writer)).write(iter([pa.record_batch({"value": ["1", "2"]})]))
    batch = NsqStreamWriter(WITH_KEYS, StructType().add("value", StringType()), False)
    monkeypatch.setattr(TaskContext, "get", lambda: Task({"sql.streaming.queryId": "query", "streaming.sql.batchId": "7"}))
    batch.write(iter([pa.record_batch({"value": ["1"]})]))
    *first, last = (dict(one.headers)["idempotency-key"] for one in memory.stored("a"))
    assert first[:2] == first[2:] != first[:1] * 2
    assert last.startswith("query-7-3-")


@pytest.mark.parametrize("knows", [True, False])
def test_rows_with_keys_are_published_also_where_each_is_published_by_itself(knows: bool) -> None:
    memory = MemoryBroker("memory://sink")
    rows = RowPublisher([MemoryTransport([memory])])
    if not knows:
        rows._producers = [OneAtATime(memory)]
    rows.publish_rows("a", [b"1", b"2"], ["k1", "k2"])
    assert [(one.body, dict(one.headers)) for one in memory.stored("a")] == [
        (b"1", {"idempotency-key": "k1"}),
        (b"2", {"idempotency-key": "k2"}),
    ]


class OneAtATime:
    """A producer that knows no headers of each."""

    def __init__(self, memory: MemoryBroker) -> None:
        self._inner = MemoryProducer([memory])

    def publish(self, topic: str, bodies: list[bytes], **how: Any) -> None:
        self._inner.publish(topic, bodies, **how)


class Task:
    """What Spark says of a task."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.getLocalProperty = properties.get

    def partitionId(self) -> int:
        return 3
