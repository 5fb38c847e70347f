"""The sink without Spark: what is refused, and how rows become publishes."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from framework import publisher
from framework.errors import PublishError, WrongUse
from framework.spark import options
from framework.spark.writer import NsqStreamWriter, NsqWriter, messages
from framework.transports.contract import Capabilities

TO_A = options.write({"nsqdTcpAddresses": "127.0.0.1:1", "topic": "a"})
ANYWHERE = options.write({"nsqdTcpAddresses": "127.0.0.1:1"})


def test_strings_and_bytes_become_bodies() -> None:
    rows = pa.record_batch({"value": ["a", "ż"]})
    assert list(messages(rows, "t")) == [("t", [b"a", "ż".encode()])]
    rows = pa.record_batch({"value": [b"\x00\xff"]})
    assert list(messages(rows, "t")) == [("t", [b"\x00\xff"])]


def test_rows_go_to_the_topics_they_name_in_their_order() -> None:
    rows = pa.record_batch({"topic": ["b", "a", "b"], "value": ["1", "2", "3"]})
    assert list(messages(rows, None)) == [("a", [b"2"]), ("b", [b"1", b"3"])]


def test_a_null_is_refused() -> None:
    with pytest.raises(WrongUse, match="1 rows have a null value"):
        list(messages(pa.record_batch({"value": ["a", None]}), "t"))


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
