"""The wire: what goes out is what nsqd reads, and any cut of what comes in gives the same values."""

from __future__ import annotations

import json
import struct
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import BrokerError, ProtocolError
from framework.transports.nsq import wire

ID = b"0123456789abcdef"
ids = st.binary(min_size=16, max_size=16)
frames = st.one_of(
    st.builds(
        wire.encode_message,
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 65535),
        ids,
        st.binary(max_size=300),
    ),
    st.builds(wire.encode_frame, st.sampled_from([wire.FRAME_RESPONSE, wire.FRAME_ERROR]), st.binary(max_size=60)),
    st.just(wire.encode_frame(wire.FRAME_RESPONSE, wire.OK)),
)


def read(decoder: wire.Decoder, pieces: list[bytes]) -> tuple[list, list]:
    """Everything that the pieces hold, in a form that can be compared."""
    messages, others = [], []
    for piece in pieces:
        more, rest = decoder.feed(piece)
        messages += [(m.id, m.timestamp, m.attempts, m.body) for m in more]
        others += [o if isinstance(o, bytes) else (o.code, o.words, o.fatal) for o in rest]
    return messages, others


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(a, len(data)) for a in at), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


# --- decoding ----------------------------------------------------------------------------------------------


@given(st.lists(frames, max_size=12), st.lists(st.integers(0, 3000), max_size=20))
def test_any_cut_of_the_stream_gives_the_same_values(stream, at):
    data = b"".join(stream)
    assert read(wire.Decoder(), cut(data, at)) == read(wire.Decoder(), [data])


@given(st.integers(0, 50), st.sampled_from([wire.OK, wire.HEARTBEAT, b"O", b"KO"]), st.integers(0, 600))
def test_oks_in_a_row_are_counted_up_to_what_is_no_ok(count, last, at):
    stream = wire.encode_frame(wire.FRAME_RESPONSE, wire.OK) * count + wire.encode_frame(wire.FRAME_RESPONSE, last)
    assert read(wire.Decoder(), cut(stream, [at])) == ([], [wire.OK] * count + [last])


@given(st.lists(frames, max_size=6))
def test_a_stream_in_single_bytes_gives_the_same_values(stream):
    data = b"".join(stream)
    assert read(wire.Decoder(), [data[i : i + 1] for i in range(len(data))]) == read(wire.Decoder(), [data])


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 65535), ids, st.binary(max_size=2000))
def test_a_message_comes_back_as_it_was_encoded(timestamp, attempts, message_id, body):
    decoder = wire.Decoder("the connection")
    messages, others = decoder.feed(wire.encode_message(timestamp, attempts, message_id, body))
    (message,) = messages
    assert (message.timestamp, message.attempts, message.id, message.body) == (timestamp, attempts, message_id, body)
    assert message.connection == "the connection"
    assert others == []


@given(st.lists(st.binary(max_size=200), max_size=30))
def test_garbage_gives_values_or_a_protocol_error(pieces):
    decoder = wire.Decoder()
    try:
        for piece in pieces:
            decoder.feed(piece)
    except ProtocolError:
        pass


@given(st.lists(frames, min_size=1, max_size=6), st.integers(0, 500), st.integers(0, 255), st.lists(st.integers(0, 900)))
def test_a_stream_with_one_byte_wrong_gives_values_or_a_protocol_error(stream, where, byte, at):
    data = bytearray(b"".join(stream))
    data[where % len(data)] = byte
    try:
        read(wire.Decoder(), cut(bytes(data), at))
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack(">i", -1), "-1 bytes"),
        (struct.pack(">i", 3), "3 bytes"),
        (b"HTTP/1.1 400 Bad Request", "1213486160 bytes"),
        (struct.pack(">i", wire.MAX_FRAME + 1), "67108865 bytes"),
        (struct.pack(">ii", 6, 3) + b"OK", "frame type 3"),
        (struct.pack(">ii", 6, -1) + b"OK", "frame type -1"),
        (struct.pack(">ii", 29, 2) + b"x" * 25, "a message frame of 29 bytes"),
        (struct.pack(">ii", 29, 2) + b"x" * 60, "a message frame of 29 bytes"),
    ],
)
def test_what_no_nsqd_sends_is_refused_with_the_bytes_named(data, words):
    with pytest.raises(ProtocolError, match=words) as caught:
        wire.Decoder().feed(data)
    assert repr(data[:32]) in str(caught.value)


def test_garbage_after_good_frames_is_refused_too():
    good = wire.encode_message(1, 1, ID, b"body")
    with pytest.raises(ProtocolError, match="GET /"):
        wire.Decoder().feed(good + b"GET / HTTP/1.1")


def test_a_frame_over_the_limit_is_refused_before_its_body_comes():
    decoder = wire.Decoder(max_frame=1000)
    with pytest.raises(ProtocolError, match="1001 bytes"):
        decoder.feed(struct.pack(">ii", 1001, 2))


def test_a_large_message_in_many_pieces_costs_no_more_than_its_size():
    data = wire.encode_message(1, 1, ID, b"x" * 30_000_000)
    decoder = wire.Decoder()
    started = time.process_time()
    found = [m for at in range(0, len(data), 4096) for m in decoder.feed(data[at : at + 4096])[0]]
    assert len(found[0].body) == 30_000_000
    assert time.process_time() - started < 2  # joining at every piece would copy 110 GB


def test_attempts_are_unsigned():
    (message,), _ = wire.Decoder().feed(wire.encode_message(1, 40_000, ID, b"x"))
    assert message.attempts == 40_000


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code", "fatal"),
    [
        (b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight", "E_FIN_FAILED", False),
        (b"E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight", "E_REQ_FAILED", False),
        (b"E_TOUCH_FAILED TOUCH 0123456789abcdef failed client does not own message", "E_TOUCH_FAILED", False),
        (b"E_INVALID cannot SUB in current state", "E_INVALID", True),
        (b"E_BAD_TOPIC E_BAD_TOPIC MPUB topic name", "E_BAD_TOPIC", True),
        (b"E_BAD_PROTOCOL", "E_BAD_PROTOCOL", True),
        (b"", "", True),
        (b"\xff\xfe", "\ufffd\ufffd", True),
    ],
)
def test_only_three_errors_leave_the_connection_open(data, code, fatal):
    error = wire.parse_error(data)
    assert (error.code, error.fatal) == (code, fatal)


def test_an_error_says_which_message_it_speaks_of():
    assert wire.refused_id(wire.parse_error(b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")) == ID
    assert wire.refused_id(BrokerError("E_FIN_FAILED")) is None


# --- encoding ----------------------------------------------------------------------------------------------


def test_settlements_are_joined():
    assert wire.fin([b"a" * 16]) == b"FIN aaaaaaaaaaaaaaaa\n"
    assert wire.fin([b"a" * 16, b"b" * 16]) == b"FIN aaaaaaaaaaaaaaaa\nFIN bbbbbbbbbbbbbbbb\n"
    assert wire.touch([b"a" * 16, b"b" * 16]) == b"TOUCH aaaaaaaaaaaaaaaa\nTOUCH bbbbbbbbbbbbbbbb\n"


def test_a_delay_goes_out_in_whole_milliseconds_and_never_negative():
    assert wire.req(ID, 1.2345) == b"REQ 0123456789abcdef 1234\n"
    assert wire.req(ID, -1) == b"REQ 0123456789abcdef 0\n"
    assert wire.dpub("t", 0.5, b"x") == b"DPUB t 500\n\x00\x00\x00\x01x"


def test_identify_carries_json_with_its_size():
    data = wire.identify({"heartbeat_interval": 1000})
    head, _, rest = data.partition(b"\n")
    assert head == b"IDENTIFY"
    assert struct.unpack(">i", rest[:4])[0] == len(rest) - 4
    assert json.loads(rest[4:]) == {"heartbeat_interval": 1000}


sizes_around_the_table = st.integers(4090, 4100).map(lambda size: b"x" * size)


@given(st.lists(st.binary(min_size=1, max_size=50) | sizes_around_the_table, min_size=1, max_size=20))
def test_an_mpub_states_its_exact_size_and_count(bodies):
    head, _, rest = wire.mpub("t", bodies, [len(b) for b in bodies]).partition(b"\n")
    size, count = struct.unpack(">ii", rest[:8])
    assert head == b"MPUB t"
    assert (size, count) == (len(rest) - 4, len(bodies))
    assert size == wire.mpub_size([len(b) for b in bodies])
    at, seen = 8, []
    while at < len(rest):
        (n,) = struct.unpack_from(">i", rest, at)
        seen.append(rest[at + 4 : at + 4 + n])
        at += 4 + n
    assert seen == bodies


def test_a_frame_that_ends_with_its_head_is_whole() -> None:
    """A response without a word, of which all but the last byte came."""
    decoder, empty = wire.Decoder(), b"\0\0\0\x04\0\0\0\0"
    for cut in range(1, 8):
        assert decoder.feed(empty[:cut]) == ([], [])
        assert decoder.unfinished
        assert decoder.feed(empty[cut:]) == ([], [b""])
        assert not decoder.unfinished
