"""The messages of an answer as handlers get them: the same as by reading each whole, whatever came before it."""

from __future__ import annotations

import itertools
import re
import struct
import sys
import zlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from framework.errors import ProtocolError
from framework.message import Message, Unreadable
from framework.transports.rocketmq.opening import Opener
from framework.transports.rocketmq.wire import properties
from framework.transports.rocketmq.wire.stored import decode_all
from tests.transports.rocketmq.test_stored import GOLDEN, with_addresses_of_ipv6, with_long_topic


def stored(given: bytes, body: bytes = b"body", flags: int = 0, topic: bytes = b"t") -> bytes:
    address = b"\x7f\0\0\1\0\0\x2a\x9f"
    rest = struct.pack(">IIiiqqiq8sq8siqi", 0xDAA320A7, 1, 2, 0, 3, 4, flags, 5, address, 6, address, 7, 0, len(body)) + body
    rest += bytes([len(topic)]) + topic + struct.pack(">h", len(given)) + given
    return struct.pack(">i", len(rest) + 4) + rest


def opener() -> Opener:
    connection: Any = SimpleNamespace(topic="orders", channel="billing", node="broker-a")
    return Opener(connection)


def expected(data: bytes) -> list[tuple[Any, ...]]:
    found = []
    for one in decode_all(data):
        said = properties.decode(one.properties.decode(errors="replace"))
        id = (said.get("UNIQ_KEY") or one.record.message_id).encode()
        found.append((one.record, id, one.body, one.reconsumed + 1, one.timestamp, properties.for_handlers(said)))
    return found


def opened(by: Opener, data: bytes) -> list[tuple[Any, ...]]:
    return [
        (record, one.id, one.body, one.attempts, one.timestamp, dict(one.headers))
        for record, one, _ in by.opened(data)
        if one is not None
    ]


KINDS = [
    b"UNIQ_KEY\x01A1\x02", b"UNIQ_KEY\x01A2", b"UNIQ_KEY\x01\x02", b"UNIQ_KEY\x01caf\xe9\x02", b"UNIQ_KEY\x01one-two\x02",
    b"WAIT\x01true\x02UNIQ_KEY\x01B1\x02k\x01v\x02", b"k\x01v\x02UNIQ_KEY\x01B2\x02WAIT\x01t\x02",
    b"k\x01v\x02UNIQ_KEY\x01B3\x02WAIT\x01t\x02", b"k\x01v\x02UNIQ_KEY\x01B\x02x\x01y\x02WAIT\x01t\x02",
    b"NO_UNIQ_KEY\x01B4\x02", b"UNIQ_KEY\x01C\x02UNIQ_KEY\x01D\x02", b"", b"x", b"\x02\x02",
]  # fmt: skip
"""Properties."""


@pytest.mark.parametrize("pair", list(itertools.product(range(len(KINDS)), repeat=2)))
def test_what_is_remembered_of_a_message_changes_no_other(pair: tuple[int, int]) -> None:
    data = b"".join(stored(KINDS[number]) for number in (*pair, *pair))
    by = opener()
    assert opened(by, data) == expected(data)
    assert opened(by, data) == expected(data)


@given(st.lists(st.sampled_from([*map(stored, KINDS), GOLDEN, with_long_topic(), with_addresses_of_ipv6()])))
def test_messages_of_all_kinds_stand_one_behind_the_other(some: list[bytes]) -> None:
    data = b"".join(some)
    assert opened(opener(), data) == expected(data)


def test_a_packed_body_is_unpacked() -> None:
    found = opener().opened(stored(b"", zlib.compress(b"a body"), 1) + GOLDEN)
    assert [one.body for _, one, _ in found if one] == [b"a body", b"hello"]


def test_a_body_that_cannot_be_unpacked_comes_as_it_is_and_says_why() -> None:
    found = [one for _, one, _ in opener().opened(stored(b"UNIQ_KEY\x01A1\x02k\x01v\x02", b"no zlib", 1) + GOLDEN)]
    assert [one.body for one in found if one] == [b"no zlib", b"hello"]
    assert [type(one) for one in found] == [Unreadable, Message]
    bad = found[0]
    assert isinstance(bad, Unreadable)
    assert "cannot be unpacked" in bad.why
    assert (bad.id, bad.headers) == (b"A1", {"k": "v"})


def test_one_that_another_worker_may_unpack_is_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    assert [one for _, one, _ in opener().opened(stored(b"", b"no lz4", 0x101))] == [None]


@given(st.integers(0, len(GOLDEN) - 1), st.integers(0, 255))
def test_a_wrong_byte_ends_in_no_other_error(at: int, value: int) -> None:
    data = bytearray(GOLDEN)
    data[at] = value
    try:
        opener().opened(bytes(data) * 2)
    except ProtocolError as error:
        assert str(error).startswith("not RocketMQ's bytes: ")  # noqa: PT017


ALIKE = stored(b"UNIQ_KEY\x01A1\x02WAIT\x01true\x02")


@given(st.integers(0, len(ALIKE) - 1), st.integers(0, 255), st.integers(0, 3))
@example(39, 1, 1).via("it is packed")
@example(ALIKE.index(b"A1"), 0xE9, 2).via("an id that is no ASCII")
def test_one_that_differs_from_those_before_is_read_as_if_it_were_the_first(at: int, value: int, place: int) -> None:
    """Also where all have one size."""
    by = opener()
    assert opened(by, ALIKE * 3) == expected(ALIKE * 3)
    odd = bytearray(ALIKE)
    odd[at] = value
    data = ALIKE * place + bytes(odd) + ALIKE * (3 - place)
    try:
        found = opened(opener(), data)
    except ProtocolError as error:
        with pytest.raises(ProtocolError, match=re.escape(str(error))):
            by.opened(data)
    else:
        assert opened(by, data) == found
        assert [type(one) for _, one, _ in by.opened(data)] == [type(one) for _, one, _ in opener().opened(data)]
    assert opened(by, ALIKE * 2) == expected(ALIKE * 2)


@pytest.mark.parametrize("other", [stored(b"UNIQ_KEY\x01A1\x02", zlib.compress(b"a body"), 1), with_addresses_of_ipv6()])
def test_what_is_like_no_other_is_no_pattern(other: bytes) -> None:
    by = opener()
    for data in (ALIKE * 2, other * 2, ALIKE + other, other + ALIKE, ALIKE * 3, other * 3):
        assert opened(by, data) == opened(opener(), data)


def test_bodies_of_one_size_are_told_apart() -> None:
    by = opener()
    for bodies in ([b"a1", b"a2", b"a3"], [b"b1", b"b2"], [b"c1", b"longer"], [b"d1"], [b"", b""], [b"e1", b"e2"]):
        data = b"".join(stored(b"UNIQ_KEY\x01%02d\x02" % number, body) for number, body in enumerate(bodies))
        assert [one[1:3] for one in opened(by, data)] == [(b"%02d" % number, body) for number, body in enumerate(bodies)]


@pytest.mark.parametrize("size", range(1, len(GOLDEN)))
def test_a_message_that_is_cut_is_refused(size: int) -> None:
    for data in (GOLDEN[:size], GOLDEN + GOLDEN[:size]):
        with pytest.raises(ProtocolError):
            opener().opened(data)


@given(st.binary(min_size=1, max_size=300))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        opener().opened(data)
