"""Headers in an envelope around the body: what comes out is what went in, and what is no envelope is nobody's business."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import BadMessage
from framework.headers import NONE, OneEach
from framework.message import Message
from framework.transports.enveloped import MAGIC, SealingProducer, opened, opening, sealed, sealed_each

headers = st.dictionaries(st.from_regex(r"[a-zA-Z-]{1,9}", fullmatch=True), st.text(max_size=9), max_size=4)
bodies = st.one_of(st.binary(min_size=1), st.binary().map(lambda rest: MAGIC + rest))


def message(body: bytes) -> Message:
    return Message(b"id", 0, 1, body, None)


@given(headers, bodies)
def test_what_was_sealed_is_opened_with_its_headers_byte_for_byte(given_: dict[str, str], body: bytes) -> None:
    found = opened(message(sealed(given_, body)))
    assert (dict(found.headers), found.body) == (given_, body)


@given(st.lists(st.tuples(st.text(max_size=9), bodies), max_size=4))
def test_many_that_have_one_header_each_are_sealed_as_each_is_alone(sent: list[tuple[str, bytes]]) -> None:
    each = OneEach('the"key', [value for value, _ in sent])
    assert list(each) == [each[n] for n in range(len(each))] == [{'the"key': value} for value, _ in sent]
    alone = [sealed(given_, body) for given_, (_, body) in zip(each, sent, strict=True)]
    assert sealed_each(each, [body for _, body in sent]) == sealed_each(list(each), [body for _, body in sent]) == alone


def test_more_bodies_than_headers_are_refused() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        sealed_each(OneEach("key", ["1"]), [b"1", b"2"])


@given(bodies)
def test_a_body_without_headers_is_stored_as_it_is_unless_it_looks_like_an_envelope(body: bytes) -> None:
    assert (sealed(NONE, body) == body) != body.startswith(MAGIC)


def test_anybody_can_read_and_write_it() -> None:
    first, second, body = sealed({"trace": "größe"}, b"a\nb").split(b"\n", 2)
    assert (first, json.loads(second), body) == (b"workers-headers/1", {"trace": "größe"}, b"a\nb")
    theirs = message(b'workers-headers/1\n{ "trace" : "1" }\n{"order": 7}')
    assert (opened(theirs).body, theirs.headers) == (b'{"order": 7}', {"trace": "1"})


def test_the_envelope_on_the_page_about_nsq_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "nsq.md").read_text()
    (shown,) = re.findall(r"```text\n(workers-headers/1\n.*?)\n```", page, re.DOTALL)
    found = opened(message(shown.encode()))
    assert list(found.headers) == ["traceparent"]
    assert found.body == b"the body, as it is"
    assert sealed(found.headers, found.body) == shown.encode()


@pytest.mark.parametrize(
    "body",
    [
        b"x", b'{"traceparent": "00-1"}\nx', b"workers-headers/1", b"workers-headers/2\n{}\nx", MAGIC, MAGIC + b"{}",
        MAGIC + b"x\nbody", MAGIC + b'["a"]\nx', MAGIC + b'{"a": 1}\nx', MAGIC + b'{"a": "\xff"}\nx', b" " + MAGIC + b"{}\nx",
    ],
)  # fmt: skip
def test_what_is_no_envelope_passes_untouched(body: bytes) -> None:
    found = opened(message(body))
    assert found.body == body
    assert found.headers is NONE


def test_a_decoder_opens_what_it_decodes_and_leaves_other_frames_alone() -> None:
    feed = opening(lambda data: ([message(data), message(b"plain")], [b"OK"]))
    (first, second), others = feed(sealed({"a": "1"}, b"x"))
    assert (first.body, dict(first.headers), second.body, second.headers, others) == (b"x", {"a": "1"}, b"plain", {}, [b"OK"])


class Inner:
    def __init__(self) -> None:
        self.stored: list[Any] = []

    def publish(self, topic: str, bodies: Sequence[bytes], **how: Any) -> None:
        self.stored.append((topic, bodies, how))

    def publish_each(self, topic: str, bodies: Sequence[bytes], **how: Any) -> list[None]:
        self.stored.append((topic, bodies, how))
        return [None] * len(bodies)

    def close(self) -> None:
        self.stored.append("closed")


def test_a_producer_gets_sealed_bodies_and_all_else_as_it_was() -> None:
    inner = Inner()
    producer = SealingProducer(inner)
    plain = [b"x", b"y"]
    producer.publish("orders", plain, delay=1.0, timeout=2.0)
    assert inner.stored.pop() == ("orders", plain, {"delay": 1.0, "timeout": 2.0})
    producer.publish("orders", plain)
    assert inner.stored.pop()[1] is plain  # what was checked need not be checked again
    assert producer.publish_each("orders", plain, headers={"a": "1"}) == [None, None]
    assert inner.stored.pop()[1] == [b'workers-headers/1\n{"a":"1"}\n' + body for body in plain]
    with pytest.raises(BadMessage, match="empty"):
        producer.publish("orders", [b"x", b""])
    assert inner.stored == []
    producer.publish("orders", [b""], headers={"a": "1"})  # a letter's, which others published
    assert inner.stored.pop()[1] == [b'workers-headers/1\n{"a":"1"}\n']
    producer.close()
    assert inner.stored == ["closed"]
