"""The sink without Spark: what is refused, and how rows become publishes."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from framework.errors import WrongUse
from framework.spark import options
from framework.spark.writer import NsqStreamWriter, NsqWriter, messages

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
