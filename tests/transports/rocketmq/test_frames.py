"""Frames: golden bytes of Java's library, any split of a stream, and garbage. The bytes are RocketMQ 5.3.3's."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import AccessDenied, CommandRefused, ProtocolError, TryLater
from framework.transports.rocketmq.wire import errors, frames
from framework.transports.rocketmq.wire.codes import Answer, Request, name_of
from framework.transports.rocketmq.wire.errors import CLASSES, JavaException, RocketError, error_of
from framework.transports.rocketmq.wire.frames import MAX_FRAME, Decoder, Frame, Language, encode, encode_binary

GOLDEN = bytes.fromhex("000000290100002101360301df000000ce000000020000000268690000000a00016100000003677270626f6479")
BINARY = Frame(310, 206, {"a": "grp"}, b"body", flag=2, remark="hi")

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
some_frames = st.builds(
    Frame,
    code=st.integers(-1000, 200_151),
    opaque=st.integers(0, 2**31 - 1),
    fields=st.dictionaries(words, words, max_size=4),
    body=st.binary(max_size=40),
    flag=st.integers(0, 3),
    remark=words,
    language=st.sampled_from(list(Language)),
    version=st.integers(0, 500),
)


def test_a_binary_frame_is_what_java_writes_and_reads() -> None:
    assert encode_binary(BINARY) == GOLDEN
    (read,) = Decoder().feed(GOLDEN)
    assert (read, read.is_oneway, read.is_answer) == (BINARY, True, False)


def test_a_frame_in_json_has_what_java_needs() -> None:
    data = encode(Frame(Request.POP_MESSAGE, 7, {"topic": "t"}, b"xyz"))
    length, mark = struct.unpack(">ii", data[:8])
    assert (length, mark >> 24, data[8 + mark :]) == (len(data) - 4, 0, b"xyz")
    assert data[8 : 8 + mark] == (
        b'{"code":200050,"language":"PYTHON","version":479,"opaque":7,"flag":0,"extFields":{"topic":"t"}}'
    )


def test_an_answer_of_java_is_read_with_what_it_leaves_out() -> None:
    header = b'{"code":0,"extFields":{"a":"1","b":null},"flag":1,"language":"JAVA","opaque":3,"serializeTypeCurrentRPC":"JSON"}'
    (read,) = Decoder().feed(struct.pack(">ii", 4 + len(header), len(header)) + header)
    assert (read.code, read.opaque, read.fields, read.is_answer, read.remark, read.body) == (0, 3, {"a": "1"}, True, "", b"")
    assert read.language == Language.JAVA


@given(some_frames)
def test_what_is_encoded_is_decoded(frame: Frame) -> None:
    assert Decoder().feed(encode(frame)) == [frame]
    if frame.code < 2**15:
        assert Decoder().feed(encode_binary(frame)) == [frame]


@given(st.lists(some_frames, max_size=5), st.data())
def test_any_split_of_a_stream_gives_the_same_frames(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder, got = Decoder(), []
    for start, end in pairwise([0, *cuts, len(stream)]):
        got += decoder.feed(stream[start:end])
    assert got == sent


def test_one_byte_at_a_time_is_a_split_as_well() -> None:
    decoder = Decoder()
    got = [frame for byte in GOLDEN * 2 for frame in decoder.feed(bytes([byte]))]
    assert got == [BINARY, BINARY]


@given(st.binary(max_size=60))
def test_garbage_is_refused_in_a_sentence_or_waited_for(data: bytes) -> None:
    try:
        Decoder().feed(data)
    except ProtocolError as error:
        assert str(error).startswith("not RocketMQ's bytes: ")  # noqa: PT017


@given(st.integers(0, len(GOLDEN) - 1), st.integers(0, 255))
def test_a_frame_with_a_wrong_byte_ends_in_no_other_error(at: int, value: int) -> None:
    data = bytearray(GOLDEN)
    data[at] = value
    try:
        Decoder().feed(bytes(data))
    except ProtocolError:
        pass


@pytest.mark.parametrize("length", [MAX_FRAME - 3, 2**31 - 1, -1, 3, struct.unpack(">i", b"GET ")[0]])
def test_a_frame_too_large_or_too_small_is_refused_before_anything_of_it_is_kept(length: int) -> None:
    decoder = Decoder()
    with pytest.raises(ProtocolError, match=rf"a frame of {length} bytes"):
        decoder.feed(struct.pack(">i", length) + b"x" * 10)
    assert decoder._pieces == []


def test_a_header_of_a_hundred_thousand_brackets_is_refused_as_other_garbage() -> None:
    header = b'{"code":0,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(ProtocolError, match="a header that cannot be read"):
        Decoder().feed(struct.pack(">ii", 4 + len(header), len(header)) + header)


def test_the_largest_frame_is_taken_and_none_larger_is_made() -> None:
    room = MAX_FRAME - len(encode(Frame(0)))
    data = encode(Frame(0, body=b"x" * room))
    assert len(data) == MAX_FRAME
    (read,) = Decoder().feed(data)
    assert len(read.body) == room
    with pytest.raises(ProtocolError, match="takes up to"):
        encode(Frame(0, body=b"x" * (room + 1)))


def test_a_code_of_pop_does_not_fit_a_binary_header() -> None:
    with pytest.raises(ProtocolError, match="200050 needs more"):
        encode_binary(Frame(Request.POP_MESSAGE))


# --- codes and errors --------------------------------------------------------------------------------------


def test_codes_have_javas_names_and_numbers() -> None:
    assert (Request.GET_ROUTEINFO_BY_TOPIC, Request.SEND_MESSAGE_V2, Request.BATCH_ACK_MESSAGE) == (105, 310, 200151)
    assert (Answer.POLLING_TIMEOUT, Answer.GO_AWAY, name_of(17), name_of(999)) == (210, 1500, "TOPIC_NOT_EXIST", "code 999")


@pytest.mark.parametrize("code", [1, 2, 3, 10, 11, 12, 13, 14, 16, 17, 19, 20, 21, 22, 24, 25, 26, 29, 208, 209, 210, 215, 1500])
def test_each_error_is_a_class_of_its_own_that_keeps_the_servers_words(code: int) -> None:
    error = error_of(Frame(code, flag=frames.RESPONSE, remark=" the server's words "))
    assert (type(error), error.number, error.words, error.fatal) == (CLASSES[code], code, "the server's words", False)
    assert str(error) == f"{name_of(code)} the server's words"
    assert [other for other, its in CLASSES.items() if its is type(error)] == [code]


def test_an_error_of_no_class_keeps_its_number() -> None:
    error = error_of(Frame(2005, remark="x"))
    assert (type(error), str(error)) == (RocketError, "CONTROLLER_INVALID_REQUEST x")


@pytest.mark.parametrize(
    "words",
    [
        "java.lang.NullPointerException, org.apache.rocketmq.broker.processor.AbstractSendMessageProcessor",
        'java.lang.NumberFormatException: For input string: "x"',
        "parse message error org.apache.rocketmq.remoting.exception.RemotingCommandException: the custom field <a> is null",
    ],
)
def test_an_exception_of_java_is_a_fault_of_the_request(words: str) -> None:
    error = error_of(Frame(1, remark=words))
    assert isinstance(error, JavaException)
    assert isinstance(error, CommandRefused)
    assert not isinstance(error, TryLater)


def test_errors_say_what_can_be_done() -> None:
    assert isinstance(error_of(Frame(1, remark="it was not possible")), errors.SystemFault)
    assert not isinstance(error_of(Frame(1, remark="it was not possible")), JavaException)
    assert isinstance(error_of(Frame(16)), AccessDenied)
    assert isinstance(error_of(Frame(2)), TryLater)
    assert str(error_of(Frame(26, remark="no group"), fix="make it")) == "SUBSCRIPTION_GROUP_NOT_EXIST no group: make it"
