"""Bodies and values: what each annotation decodes to, which words an undecodable body gets, and what can be published."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import BadHandler, BadMessage, Batch, Message, Reject, UndecodablePayload
from framework.payload import container_of, decoder, encode


@dataclass
class Order:
    id: int
    items: list[str]
    parent: Order | None = None


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


class Pair(NamedTuple):
    a: int


class Strict(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("n is negative")


def message(body: bytes) -> Message:
    return Message(id=b"0" * 16, timestamp=0, attempts=1, body=body, connection=None)


@pytest.mark.parametrize(
    ("annotation", "body", "value"),
    [
        (bytes, b"\xff\x00", b"\xff\x00"),
        (str, "grün".encode(), "grün"),
        (dict, b'{"a": [1]}', {"a": [1]}),
        (dict[str, int], b'{"a": 1}', {"a": 1}),
        (Order, b'{"id": 1, "items": ["x"], "parent": {"id": 0, "items": []}}', Order(1, ["x"], Order(0, []))),
        (Point, b'{"x": 1.5, "unknown": true}', Point(1.5)),
    ],
)
def test_a_body_becomes_a_value_of_the_annotation(annotation: Any, body: bytes, value: Any) -> None:
    decode = decoder(annotation)
    assert decode is not None
    assert decode(message(body)) == value


def test_messages_are_handed_over_as_they_are() -> None:
    assert decoder(Message) is None


@pytest.mark.parametrize(
    ("annotation", "container", "one"),
    [
        (Batch, Batch, Message),
        (Batch[Message], Batch, Message),
        (Batch[dict[str, int]], Batch, dict[str, int]),
        (list, list, Message),
        (list[str], list, str),
        (dict[str, list[int]], None, dict[str, list[int]]),
        (Message, None, Message),
    ],
)
def test_a_batch_or_a_list_is_of_something(annotation: Any, container: type | None, one: Any) -> None:
    assert container_of(annotation) == (container, one)


@pytest.mark.parametrize(
    ("annotation", "body", "words"),
    [
        (str, b"ab\xff", "the body does not decode to str: invalid start byte at byte 2, so it is not UTF-8"),
        (dict, b"[1]", "the body does not decode to dict: Expected `object`, got `array`"),
        (dict, b"not json", "the body does not decode to dict: JSON is malformed"),
        (dict, b'{"a": ', "Input data was truncated"),
        (dict, b'{"a": "\xff"}', "the body does not decode to dict"),
        (dict, b'{"a":' * 100_000, "the body does not decode to dict"),
        (dict[str, int], b'{"a": "x"}', "the body does not decode to dict[str, int]: Expected `int`, got `str`"),
        (Order, b'{"items": []}', "the body does not decode to Order: Object missing required field `id`"),
        (Point, b'{"x": "1"}', "the body does not decode to Point: Expected `float`, got `str` - at `$.x`"),
        (Strict, b'{"n": -1}', "the body does not decode to Strict: n is negative"),
    ],
)
def test_an_undecodable_body_is_rejected_with_a_reason_that_names_the_type(annotation: Any, body: bytes, words: str) -> None:
    decode = decoder(annotation)
    assert decode is not None
    with pytest.raises(UndecodablePayload) as caught:
        decode(message(body))
    assert words in caught.value.reason
    assert isinstance(caught.value, Reject)


@given(body=st.binary(max_size=60), annotation=st.sampled_from([str, dict, dict[str, int], Order, Point, Strict]))
def test_any_body_decodes_or_is_rejected(body: bytes, annotation: Any) -> None:
    decode = decoder(annotation)
    assert decode is not None
    with suppress(UndecodablePayload):
        decode(message(body))


@pytest.mark.parametrize(
    "annotation", [int, float, object, Any, None, list, list[int], Pair, Order | Point, set[str], "Order", bytearray]
)
def test_a_type_that_no_body_decodes_to_is_refused(annotation: Any) -> None:
    with pytest.raises(BadHandler, match="cannot decode a body to"):
        decoder(annotation)


def test_an_ambiguous_type_is_refused_in_the_words_of_the_decoder() -> None:
    with pytest.raises(BadHandler, match="more than one array-like"):
        decoder(dict[str, set[int] | list[int]])


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (b"\x00raw", b"\x00raw"),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        ("grün", "grün".encode()),
        ({"a": 1}, b'{"a":1}'),
        ({}, b"{}"),
        ([1, "x"], b'[1,"x"]'),
        (Order(1, []), b'{"id":1,"items":[],"parent":null}'),
        (Point(1.0), b'{"x":1.0,"y":0.0}'),
    ],
)
def test_a_payload_becomes_a_body(payload: Any, body: bytes) -> None:
    assert encode(payload) == body


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "an empty body cannot be published"),
        ("", "an empty body cannot be published"),
        (None, "NoneType cannot be published"),
        (7, "int cannot be published: give bytes, a str, or for JSON a dict"),
        (Order, "type cannot be published"),
        ({"a": object()}, "dict could not be encoded: Encoding objects of type object is unsupported"),
        ("\ud800", "str could not be encoded"),
        (message(b"x"), "a Message cannot be published as it is: publish its body"),
    ],
)
def test_what_is_no_payload_is_refused(payload: Any, words: str) -> None:
    with pytest.raises(BadMessage) as caught:
        encode(payload)
    assert words in str(caught.value)


@given(st.dictionaries(st.text(), st.integers(-(2**53), 2**53) | st.text() | st.lists(st.booleans())))
def test_what_is_published_as_a_dict_arrives_as_that_dict(value: dict[str, Any]) -> None:
    decode = decoder(dict)
    assert decode is not None
    assert decode(message(encode(value))) == value
