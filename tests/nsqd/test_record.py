"""A record by itself, bytes to values and back: what is one, where it ends, and how a body that is too big for one is cut."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

from framework.nsqd.store import record
from framework.nsqd.store.compaction import _hollow, dense
from framework.nsqd.store.damage import Piece, pieces
from framework.nsqd.store.record import HEADER_BYTES, Batch, Declaration, Declared, Header

SALT = 0xDEADBEEF


def payload(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def batch(**changes: Any) -> Batch:
    values = {
        "topic": 7,
        "first": 100,
        "count": 2,
        "ts": 1_700_000_000_000_000_000,
        "due": 5,
        "payload": payload(b"one", b"three"),
    }
    return Batch(**{**values, **changes})


def encoded(one: Batch) -> bytes:
    return b"".join(record.encode(one, SALT))


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(("before", "behind"), [(b"", b""), (b"\x00" * 5, b""), (b"\x00" * 5, b"behind")])
def test_a_record_is_read_as_it_was_written_wherever_it_is(before: bytes, behind: bytes, moved: bool) -> None:
    one = batch(moved=moved)
    data = before + encoded(one) + behind
    assert record.decode(data, len(before), SALT) == one
    assert record.decode(memoryview(data), len(before), SALT) == one
    assert record.header(data, len(before)) == Header(len(one.payload), 7, 100, 2, moved)
    assert record.salted(data, len(before)) == (SALT, len(before) + len(encoded(one)))
    assert (one.end, one.weight) == (102, len(one.payload) + 300)


def test_the_bytes_of_a_record_are_what_they_were_in_every_version() -> None:
    one = batch(moved=True)
    fields = struct.pack(">IIQIqQ", len(one.payload), 7, 100, 2 | 1 << 31, one.ts, 5)
    crc = zlib.crc32(fields + one.payload, SALT)
    assert encoded(one) == b"\xa9NQ1" + struct.pack(">I", crc) + fields + payload(b"one", b"three")
    assert len(encoded(one)) == HEADER_BYTES + len(one.payload)


def test_what_is_cut_off_or_has_one_wrong_bit_is_no_record() -> None:
    data = encoded(batch())
    for length in range(len(data)):
        assert record.decode(data[:length], 0, SALT) is None
        assert (record.salted(data[:length], 0) is None) is True
        assert (record.header(data[:length], 0) is None) == (length < HEADER_BYTES)
    for at in range(len(data) * 8):
        wrong = bytearray(data)
        wrong[at // 8] ^= 1 << at % 8
        assert record.decode(bytes(wrong), 0, SALT) is None
    assert record.decode(data, 0, SALT ^ 1) is None
    assert record.decode(data, 1, SALT) is None
    assert record.salted(b"X" + data[1:], 0) is None


def test_a_declaration_is_a_record_without_messages_that_says_what_its_topic_is() -> None:
    said = Declaration("orders", pumped=5, channels={"c": Declared(3, 4, True)}, gone=("d",))
    made = record.declare(7, 100, 11, said)
    assert (made.topic, made.first, made.count, made.ts, made.due, made.end) == (7, 100, 0, 11, 0, 100)
    assert record.declaration(made) == said
    assert record.opened(encoded(made), SALT) is None, "it begins no segment"


def test_a_segment_says_which_one_it_is() -> None:
    made = record.opening(12, 11)
    assert (made.topic, made.first, made.count, record.declaration(made).dropped) == (0, 0, 0, True)
    data = encoded(made) + encoded(batch())
    assert record.opened(data, SALT) == 12
    assert record.opened(data, SALT ^ 1) is None
    assert record.opened(encoded(batch()), SALT) is None


def test_messages_of_a_payload_come_out_in_order() -> None:
    assert list(record.bodies(payload(b"a", b"", b"ccc"), 3)) == [b"a", b"", b"ccc"]
    assert list(record.bodies(payload(b"a", b"b"), 1)) == [b"a"]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1, 1, 1], [3]),
        ([1] * 5, [4, 1]),
        ([30, 30, 30], [2, 1]),
        ([36, 28, 1], [2, 1]),
        ([36, 29], [1, 1]),
        ([100, 1, 100], [1, 1, 1]),
        ([100], [1]),
        ([1, 100], [1, 1]),
    ],
)
def test_what_is_too_much_for_one_record_is_cut_between_messages(
    sizes: list[int], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most four messages and 72 bytes with their sizes; a lone bigger one excepted."""
    monkeypatch.setattr(record, "MAX_RECORD_MESSAGES", 4)
    monkeypatch.setattr(record, "MAX_RECORD_BYTES", 72)
    bodies = [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    parts = list(record.split(payload(*bodies), len(bodies)))
    assert [count for _, count in parts] == expected
    assert [body for some, count in parts for body in record.bodies(some, count)] == bodies
    assert b"".join(some for some, _ in parts) == payload(*bodies)


# -- moved records


def test_of_a_record_that_moves_only_what_is_kept_has_a_body_and_only_that_is_delivered() -> None:
    whole = batch(count=6, payload=payload(*[b"%d" % at for at in range(6)]))
    hollow = batch(count=6, moved=True, payload=_hollow(whole, frozenset({101, 103, 104})))
    assert list(record.bodies(hollow.payload, 6)) == [b"", b"1", b"", b"3", b"4", b""]
    assert [(one.first, one.count, list(record.bodies(one.payload, one.count))) for one in dense(hollow)] == [
        (101, 1, [b"1"]),
        (103, 2, [b"3", b"4"]),
    ]
    assert {(one.topic, one.ts, one.due) for one in dense(hollow)} == {(7, whole.ts, 5)}
    assert dense(whole) == [whole]
    assert dense(batch(count=1, moved=True, payload=payload(b""))) == []


# -- damaged ones


def cut(*some: bytes) -> list[Piece]:
    return list(pieces(b"".join(some)))


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    wrong = bytearray(data)
    wrong[at] ^= 1 << bit
    return bytes(wrong)


@pytest.mark.parametrize("at", [0, 4, 9, 11, 44, HEADER_BYTES, HEADER_BYTES + 3, HEADER_BYTES + 5])
@pytest.mark.parametrize("behind", [False, True])
def test_a_wrong_bit_leaves_known_which_messages_a_record_had(at: int, behind: bool) -> None:
    """In the magic, the checksum, the length, a time, a size, a body; at the end of the bytes, or before another record."""
    data = encoded(batch())
    found = cut(flipped(data, at), *[encoded(batch(first=102))] * behind)
    piece = found[0]
    assert len(found) == 1 + behind
    assert (piece.offset, piece.length, piece.whole) == (0, len(data), True)
    assert (piece.topic, piece.messages, piece.with_body, piece.moved) == (7, 2, 2, False)
    assert piece.numbers == (7, 100, 102)


def test_what_was_cut_off_has_as_many_messages_as_fit_into_its_bytes_and_as_it_says_at_the_most() -> None:
    data = encoded(batch(count=3, payload=payload(b"one", b"three", b"five")))
    (piece,) = cut(data[: HEADER_BYTES + 9])
    assert (piece.whole, piece.messages, piece.with_body) == (False, 2, 1)
    (piece,) = cut(data[:HEADER_BYTES])
    assert (piece.whole, piece.messages, piece.with_body) == (False, 0, 0)
    (piece,) = cut(data[: HEADER_BYTES - 1])
    assert piece == Piece(0, HEADER_BYTES - 1, False)


def test_of_a_declaration_no_message_is_missed() -> None:
    data = encoded(record.declare(7, 100, 11, Declaration("orders")))
    (piece,) = cut(flipped(data, 26))
    assert (piece.whole, piece.messages, piece.with_body) == (True, 0, 0)


def test_of_one_that_was_moved_those_with_a_body_are_told_apart() -> None:
    whole = batch(count=3, payload=payload(b"one", b"two", b"three"))
    data = encoded(batch(count=3, moved=True, payload=_hollow(whole, frozenset({101}))))
    (piece,) = cut(flipped(data, 4))
    assert (piece.messages, piece.with_body, piece.moved, piece.whole) == (3, 1, True, True)
