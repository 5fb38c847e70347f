"""Stored messages, properties, batches, handles and signatures: golden bytes of Java's library, and garbage."""

from __future__ import annotations

import struct
import zlib

import lz4.frame
import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from framework.errors import BadMessage, ProtocolError
from framework.message import Message
from framework.transports.rocketmq.wire import handles, properties, signature, stored
from framework.transports.rocketmq.wire.handles import NORMAL, RETRY_V1, RETRY_V2, Handle, Popped
from framework.transports.rocketmq.wire.properties import Outgoing

GOLDEN = bytes.fromhex(
    "00000085daa320a7123456780000000300000007000000000000002a00000000075bcd15000000000000018bcfe5687b7f0000010000d431"
    "0000018bcfe569c87f00000100002a9f0000000200000000000000000000000568656c6c6f09546f70696354657374001c54414753015461"
    "6741024b455953016b310257414954017472756502"
)
BATCH = bytes.fromhex(
    "00000035000000000000000000000005000000026231001d554e49515f4b45590155310257414954017472756502544147530161020000"
    "002300000000000000000000000000000003623232000a57414954017472756502"
)
HANDLE = Handle(5, 1700000000123, 60000, 3, NORMAL, "broker-a", 2, 7)


# --- stored messages ---------------------------------------------------------------------------------------


def test_a_stored_message_is_read_as_java_wrote_it() -> None:
    (read,) = stored.decode_all(GOLDEN)
    assert (read.topic, read.queue_id, read.flag, read.queue_offset, read.physical_offset) == ("TopicTest", 3, 7, 42, 123456789)
    assert (read.born, read.stored, read.reconsumed, read.body) == (1700000000123, 1700000000456, 2, b"hello")
    assert (read.born_host, read.store_host) == ("127.0.0.1:54321", "127.0.0.1:10911")
    assert properties.decode(read.properties.decode()) == {"TAGS": "TagA", "KEYS": "k1", "WAIT": "true"}
    assert read.record.message_id == "7F00000100002A9F00000000075BCD15"


@pytest.mark.parametrize("born", [2**63 - 1, -(2**63), 0])
def test_whatever_time_a_publisher_says_the_message_has_one(born: int) -> None:
    """A handler that is given up writes it into the dead letter, and a spool into 64 bits."""
    (read,) = stored.decode_all(GOLDEN)
    read.born = born
    assert -(2**63) < read.timestamp < 2**63
    assert Message(b"1", read.timestamp, 1, b"x", None).published.year in (1677, 1970, 2262)


def test_messages_stand_one_behind_the_other() -> None:
    assert stored.decode_all(GOLDEN * 3) == stored.decode_all(GOLDEN) * 3
    assert stored.decode_all(b"") == []


def with_long_topic() -> bytes:
    data = GOLDEN.replace(b"\x09TopicTest", b"\x00\x09TopicTest").replace(b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
    return struct.pack(">i", len(data)) + data[4:]


def with_addresses_of_ipv6() -> bytes:
    flags_at, host = 36, b"\x7f\x00\x00\x01"
    data = GOLDEN[:flags_at] + struct.pack(">i", 0x30) + GOLDEN[flags_at + 4 :].replace(host, bytes(15) + b"\x01")
    return struct.pack(">i", len(data)) + data[4:]


def test_a_long_topic_has_two_bytes_for_its_length() -> None:
    (read,) = stored.decode_all(with_long_topic())
    assert (read.topic, read.body) == ("TopicTest", b"hello")


def test_addresses_of_ipv6_are_read() -> None:
    (read,) = stored.decode_all(with_addresses_of_ipv6())
    assert (read.born_host, read.store_host, read.body) == ("[::1]:54321", "[::1]:10911", b"hello")


@given(st.integers(0, len(GOLDEN) - 1), st.integers(0, 255))
def test_a_wrong_byte_in_a_message_ends_in_no_other_error(at: int, value: int) -> None:
    data = bytearray(GOLDEN)
    data[at] = value
    try:
        stored.decode_all(bytes(data))
    except ProtocolError as error:
        assert str(error).startswith("not RocketMQ's bytes: ")  # noqa: PT017


@pytest.mark.parametrize("size", range(1, len(GOLDEN)))
def test_a_message_that_is_cut_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        stored.decode_all(GOLDEN[:size])


@given(st.binary(max_size=100))
def test_garbage_is_refused(data: bytes) -> None:
    if data:
        with pytest.raises(ProtocolError):
            stored.decode_all(data)


def packed(kind: str, body: bytes) -> bytes:
    return {"zlib": zlib.compress, "lz4": lz4.frame.compress, "zstd": zstandard.compress}[kind](body)


KINDS = {"zlib": 0x1, "lz4": 0x101, "zstd": 0x201}
"""How a publisher packs a body -> the flags of its message."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_its_publisher_packed_is_unpacked(kind: str) -> None:
    body = b"a body " * 100
    assert stored.unpacked(packed(kind, body), KINDS[kind]) == body
    assert stored.unpacked(packed("zlib", body), 0x301) == body
    assert stored.unpacked(b"as it is", KINDS[kind] - 1) == b"as it is"


@pytest.mark.parametrize(("body", "flag", "words"), [
    (b"no zlib", 0x1, "cannot be unpacked"),
    (b"no lz4", 0x101, "cannot be unpacked"),
    (b"no zstd", 0x201, "cannot be unpacked"),
    *((packed(kind, b"x" * 1000)[:-6], flag, "cannot be unpacked") for kind, flag in KINDS.items()),
    (b"x", 0x701, "packed in an unknown way"),
])  # fmt: skip
def test_a_body_that_cannot_be_unpacked_is_refused_in_a_sentence(body: bytes, flag: int, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        stored.unpacked(body, flag)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
def test_a_body_that_would_fill_the_memory_is_refused(kind: str, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``told``: its frame says how large it is. Few bytes can be unpacked to more than a machine has."""
    monkeypatch.setattr(stored, "_LARGEST", 100_000)
    body = bytes(2_000_000)
    if kind == "zstd" and not told:
        large = zstandard.ZstdCompressor(write_content_size=False).compress(body)
    else:
        large = lz4.frame.compress(body, store_size=told) if kind == "lz4" else packed(kind, body)
    assert len(large) < 20_000
    with pytest.raises(ProtocolError, match=r"more than 100000 bytes|not decompress full frame"):
        stored.unpacked(large, KINDS[kind])
    assert stored.unpacked(packed(kind, body[:100_000]), KINDS[kind]) == body[:100_000]


# --- properties and batches --------------------------------------------------------------------------------


def test_a_batch_is_what_java_writes() -> None:
    first = properties.encode([("UNIQ_KEY", "U1"), ("WAIT", "true"), ("TAGS", "a")])
    messages = [Outgoing(b"b1", first, flag=5), Outgoing(b"b22", properties.encode([("WAIT", "true")]))]
    assert properties.encode_batch(messages) == BATCH


names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(names, names))
def test_properties_come_back_as_they_were(given: dict[str, str]) -> None:
    assert properties.decode(properties.encode(given.items())) == given


@given(st.text())
def test_any_text_is_read_as_properties(text: str) -> None:
    assert all(isinstance(value, str) for value in properties.decode(text).values())


@pytest.mark.parametrize("pair", [("a\x01b", "c"), ("a", "b\x02c"), ("a\x02", "b"), ("", "b")])
def test_a_property_that_would_end_early_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(BadMessage, match="property"):
        properties.encode([pair])


def test_handlers_see_what_publishers_gave_and_nothing_of_the_brokers() -> None:
    found = {"TAGS": "a", "KEYS": "k", "traceparent": "x", "UNIQ_KEY": "u", "POP_CK": "c", "__RMQ.TRANSIENT.X": "1", "DELAY": "3"}
    assert properties.for_handlers(found) == {"TAGS": "a", "KEYS": "k", "traceparent": "x"}


# --- handles -----------------------------------------------------------------------------------------------


def test_a_handle_is_written_and_read() -> None:
    assert str(HANDLE) == "5 1700000000123 60000 3 0 broker-a 2 7"
    assert handles.parse(str(HANDLE)) == HANDLE


@pytest.mark.parametrize("text", ["", "1 2 3", "5 x 60000 3 0 broker-a 2 7", "5 1 60000 3 0 broker-a 2 7 8"])
def test_a_handle_that_is_garbage_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="a handle"):
        handles.parse(text)


def test_a_change_gives_a_new_handle() -> None:
    assert HANDLE.changed(1700000000200, 3000, 1) == replace(
        HANDLE, start=7, pop_time=1700000000200, invisible=3000, revive_queue=1
    )


def test_what_comes_again_lies_in_a_retry_topic() -> None:
    assert HANDLE.topic("t", "g") == "t"
    assert replace(HANDLE, retry=RETRY_V1).topic("t", "g") == "%RETRY%g_t"
    assert replace(HANDLE, retry=RETRY_V2).topic("t", "g") == "%RETRY%g+t"
    assert [handles.kind_of(name, "t", "g") for name in ("t", "%RETRY%g_t", "%RETRY%g+t")] == [NORMAL, RETRY_V1, RETRY_V2]
    with pytest.raises(ProtocolError, match="'other' in an answer for 't'"):
        handles.kind_of("other", "t", "g")


def test_an_answer_to_a_pop_has_the_handles_of_its_messages() -> None:
    fields = {
        "popTime": "1700000000123", "invisibleTime": "60000", "reviveQid": "3", "restNum": "12", "startOffsetInfo": "0 2 5;1 0 9",
        "msgOffsetInfo": "0 2 5,7;1 0 9",
    }  # fmt: skip
    found = Popped(fields, "broker-a")
    assert (found.rest, found.handle(NORMAL, 2, 7)) == (12, HANDLE)
    assert found.handle(RETRY_V1, 0, 9).start == 9
    with pytest.raises(ProtocolError, match="of which the answer says nothing"):
        found.handle(NORMAL, 3, 1)


def test_a_handle_in_a_message_counts_only_where_its_delivery_has_it() -> None:
    """A broker writes none where a publisher gave one."""
    found = Popped({
        "popTime": "1700000000123", "invisibleTime": "60000", "reviveQid": "3", "startOffsetInfo": "0 2 5;1 2 6;2 2 8",
        "msgOffsetInfo": "0 2 5,7;1 2 7;2 2 8",
    }, "broker-a")  # fmt: skip
    assert found.written(str(HANDLE), 2, 7, again=True) == HANDLE
    for text in ("garbage", str(replace(HANDLE, pop_time=1)), str(replace(HANDLE, queue=3)), str(replace(HANDLE, offset=9))):
        assert found.written(text, 2, 7, again=False) == HANDLE
        assert found.written(text, 2, 7, again=True) == replace(HANDLE, start=6, retry=RETRY_V1)
        assert found.written(text, 2, 8, again=True) == replace(HANDLE, start=8, retry=RETRY_V2, offset=8)


@pytest.mark.parametrize("fields", [{}, {"popTime": "x", "invisibleTime": "1", "reviveQid": "0"}, {"popTime": "1"}])
def test_an_answer_to_a_pop_that_lacks_something_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ProtocolError, match="an answer to a POP"):
        Popped(fields, "broker-a")


@pytest.mark.parametrize(("places", "bits"), [([0, 1, 2], "Bw=="), ([], ""), ([0], "AQ=="), ([8], "AAE="), ([31, 0], "AQAAgA==")])
def test_a_bit_set_is_what_java_writes(places: list[int], bits: str) -> None:
    assert handles.bitset(places) == bits


def test_acks_of_one_pop_and_queue_are_one_entry_of_a_batch() -> None:
    entry = handles.batch_entry(HANDLE, [0, 1, 3], "t", "g")
    assert msgspec.json.decode(handles.batch_body("broker-a", [entry])) == {
        "brokerName": "broker-a",
        "acks": [
            {"c": "g", "t": "t", "r": "0", "so": 5, "q": 2, "rq": 3, "pt": 1700000000123, "it": 60000, "b": "Cw=="}
        ],
    }  # fmt: skip
    changed = HANDLE.changed(1700000000200, 3000, 1)
    assert handles.batch_entry(changed, [0], "t", "g") == entry | {"so": 7, "rq": 1, "pt": 1700000000200, "it": 3000, "b": "AQ=="}


# --- signatures --------------------------------------------------------------------------------------------


def test_a_signature_is_what_java_makes_whatever_the_order_of_fields() -> None:
    for fields in ({"topic": "TopicTest"}, {"topic": "TopicTest", "Signature": "old"}):
        assert signature.signed(fields, b"xyz", "AKID", "secret12345") == {
            "topic": "TopicTest", "AccessKey": "AKID", "Signature": "6h0vdHWWW4+lGCz9hX4cnwkk8Dw=",
        }  # fmt: skip
