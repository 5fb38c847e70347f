"""beanstalkd's bytes: every reply on any split, no garbage that is taken for one, and no command that a server would misread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import BadMessage, BadName, ProtocolError, WrongUse
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.wire import Decoder, Reply

BARE = [*sorted(wire.ERRORS), "DELETED", "RELEASED", "TOUCHED", "BURIED", "KICKED", "PAUSED"]
numbers = st.integers(0, wire.MAX_ID)
bodies = st.binary(max_size=300) | st.just(b"DELETED\r\nRESERVED 1 3\r\n") | st.binary(min_size=900, max_size=3000)
TUBES = st.from_regex(r"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199}", fullmatch=True)


def encode(reply: Reply) -> bytes:
    """As the server sends it."""
    word = reply.word.encode()
    if word in (b"RESERVED", b"FOUND"):
        return b"%b %d %d\r\n%b\r\n" % (word, reply.number, len(reply.data), reply.data)
    if word == b"OK":
        return b"OK %d\r\n%b\r\n" % (len(reply.data), reply.data)
    if word == b"USING":
        return b"USING %b\r\n" % reply.data
    if word in (b"INSERTED", b"WATCHING") or (word in (b"BURIED", b"KICKED") and reply.number):
        return b"%b %d\r\n" % (word, reply.number)
    return word + b"\r\n"


replies = st.one_of(
    st.builds(Reply, st.sampled_from(["RESERVED", "FOUND"]), numbers, bodies),
    st.builds(lambda data: Reply("OK", 0, data), bodies),
    st.builds(lambda tube: Reply("USING", 0, tube.encode()), TUBES),
    st.builds(Reply, st.sampled_from(["INSERTED", "WATCHING"]), numbers),
    st.builds(Reply, st.sampled_from(["BURIED", "KICKED"]), st.integers(1, wire.MAX_ID)),
    st.sampled_from([Reply(word) for word in BARE]),
)


@given(st.lists(replies, max_size=12), st.data())
def test_replies_are_the_same_however_the_stream_is_cut(sent, data):
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    decoder, got = Decoder(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.feed(stream[start:end])
    assert got == sent


@given(st.lists(replies, max_size=4))
def test_replies_are_the_same_when_they_come_byte_by_byte(sent):
    decoder, got = Decoder(), []
    for byte in b"".join(map(encode, sent)):
        got += decoder.feed(bytes([byte]))
    assert got == sent


def test_a_body_that_the_server_lost_is_told_from_one_of_zeros():
    lost, zeros, whole = Decoder().feed(b"RESERVED 1 2\r\n\0\0\0\0RESERVED 2 2\r\n\0\0\r\nRESERVED 3 2\r\nab\r\n")
    assert [type(reply.data) for reply in (lost, zeros, whole)] == [wire.Torn, bytes, bytes]
    assert [(reply.number, reply.data) for reply in (lost, zeros, whole)] == [(1, b"\0\0"), (2, b"\0\0"), (3, b"ab")]
    for stream in (b"OK 2\r\nab\0\0", b"RESERVED 1 2\r\nab\0\n", b"RESERVED 1 2\r\nabcd"):
        with pytest.raises(ProtocolError, match="does not end where it should"):
            Decoder().feed(stream)


@given(st.lists(st.binary(min_size=1, max_size=600), max_size=8))
def test_garbage_is_refused_or_waited_for_and_never_crashes(pieces):
    decoder = Decoder()
    try:
        for piece in pieces:
            for reply in decoder.feed(piece):
                assert reply.word in {*BARE, "RESERVED", "FOUND", "OK", "USING", "INSERTED", "WATCHING"}
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "stream",
    [
        b"HTTP/1.1 400 Bad Request\r\n", b"RESERVED 1\r\n", b"RESERVED 1 -1\r\n", b"RESERVED 1 2 3\r\n", b"RESERVED x 1\r\n",
        b"OK\r\n", b"OK 1x\r\n", b"INSERTED\r\n", b"WATCHING one\r\n", b"USING\r\n", b"USING two words\r\n", b"deleted\r\n",
        b"DELETED 1\r\n", b"RESERVED 1 2\r\nabc\r\n", b"OK 0\r\nxx", b"\r\n", b"x" * 256, b"DELETED\n",
        b"RESERVED 123456789012345678901 1\r\n",
    ],
)  # fmt: skip
def test_what_no_beanstalkd_sends_is_an_error(stream):
    with pytest.raises(ProtocolError, match="not a beanstalkd's bytes"):
        Decoder().feed(stream)


def test_a_reply_that_announces_two_gibibytes_is_an_error_and_not_an_allocation():
    for head in (b"RESERVED 1 2147483648\r\n", b"OK 2147483648\r\n", b"FOUND 1 99999999999999999999\r\n"):
        with pytest.raises(ProtocolError, match="are allowed"):
            Decoder().feed(head)


def test_a_body_in_many_pieces_is_joined_once():
    decoder = Decoder()
    assert decoder.feed(b"RESERVED 7 %d\r\n" % 8_000_000) == []
    for _ in range(999):
        assert decoder.feed(b"x" * 8000) == []
    [reply] = decoder.feed(b"x" * 8000 + b"\r\n")
    assert (reply.word, reply.number, len(reply.data)) == ("RESERVED", 7, 8_000_000)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (wire.put(b"a\r\nb", 0, 1, 2), b"put 0 1 2 4\r\na\r\nb\r\n"),
        (wire.put(b""), b"put 1024 0 60 0\r\n\r\n"),
        (wire.use("a/b"), b"use a/b\r\n"),
        (wire.watch("a"), b"watch a\r\n"),
        (wire.ignore("a"), b"ignore a\r\n"),
        (wire.reserve_with_timeout(0), b"reserve-with-timeout 0\r\n"),
        (wire.reserve_job(wire.MAX_ID), b"reserve-job 18446744073709551615\r\n"),
        (wire.delete(1), b"delete 1\r\n"),
        (wire.release(1, 2, 3), b"release 1 2 3\r\n"),
        (wire.bury(1, 2), b"bury 1 2\r\n"),
        (wire.touch(1), b"touch 1\r\n"),
        (wire.peek(1), b"peek 1\r\n"),
        (wire.kick(9), b"kick 9\r\n"),
        (wire.kick_job(1), b"kick-job 1\r\n"),
        (wire.stats_job(1), b"stats-job 1\r\n"),
        (wire.stats_tube("a"), b"stats-tube a\r\n"),
        (wire.pause_tube("a", 0), b"pause-tube a 0\r\n"),
        (wire.RESERVE, b"reserve\r\n"),
        (wire.PEEK_READY + wire.PEEK_DELAYED + wire.PEEK_BURIED, b"peek-ready\r\npeek-delayed\r\npeek-buried\r\n"),
        (wire.STATS, b"stats\r\n"),
        (wire.LIST_TUBES + wire.LIST_TUBE_USED, b"list-tubes\r\nlist-tube-used\r\n"),
        (wire.LIST_TUBES_WATCHED + wire.QUIT, b"list-tubes-watched\r\nquit\r\n"),
    ],
)
def test_commands(command, line):
    assert command == line


@given(
    st.integers() | st.booleans() | st.floats(),
    st.sampled_from(["priority", "delay", "ttr"]),
)
def test_a_put_whose_line_a_server_would_refuse_is_never_made(value, field):
    try:
        line = wire.put(b"body", **{field: value})
    except WrongUse:
        assert type(value) is not int or not 0 <= value <= wire.MAX_NUMBER
    else:
        assert type(value) is int
        assert len(line.partition(b"\r\n")[0]) < 222


@pytest.mark.parametrize("tube", ["", "-a", "a b", "a\r\nquit", "a:b", "a#b", "ä", "x" * 201, 7])
def test_a_tube_that_a_server_would_refuse_is_never_named(tube):
    for command in (wire.use, wire.watch, wire.ignore, wire.stats_tube):
        with pytest.raises(BadName, match="is not valid"):
            command(tube)


def test_numbers_that_a_server_would_refuse_are_never_sent():
    for command, arguments in [
        (wire.delete, (-1,)), (wire.delete, (wire.MAX_ID + 1,)), (wire.release, (1, -1, 0)), (wire.release, (1, 0, 2**32)),
        (wire.kick, (1.5,)), (wire.reserve_with_timeout, (2**31,)), (wire.pause_tube, ("a", -1)), (wire.touch, ("1",)),
    ]:  # fmt: skip
        with pytest.raises(WrongUse, match="out of range"):
            command(*arguments)
    with pytest.raises(BadMessage, match="not bytes"):
        wire.put("text")


STATS = (
    b"---\nid: %b\ntube: %b\nstate: reserved\npri: %b\nage: 9\ndelay: 3\nttr: 60\ntime-left: 59\nfile: 1\nreserves: 4\n"
    b"timeouts: 1\nreleases: 0\nburies: 0\nkicks: 0\n"
)


def test_a_jobs_state_is_read_with_and_without_quotes():
    bare = STATS % (b"7", b"reserves/age", b"5")
    quoted = STATS % (b'"7"', b'"reserves/age"', b'"5"')
    for data in (bare, quoted):
        assert wire.job_state(data) == wire.JobState(priority=5, age=9, delay=3, ttr=60, reserves=4)
        assert wire.stats(data)["tube"] == "reserves/age"
    assert wire.names(b'---\n- default\n- "a/b"\n') == ["default", "a/b"]


@given(st.binary(max_size=200))
def test_statistics_that_are_none_are_an_error(data):
    for read in (wire.job_state, wire.stats, wire.names):
        try:
            read(data)
        except ProtocolError:
            pass


def test_a_line_has_so_many_bytes_and_a_tubes_name_as_well():
    name = b"n" * wire.MAX_NAME
    assert Decoder().feed(b"USING " + name + b"\r\n") == [Reply("USING", 0, name)]
    assert wire.is_tube(name.decode())
    for unfinished in (b"x" * 255, b"DELETED\r\n" + b"x" * 255):
        decoder = Decoder()
        decoder.feed(unfinished)
        with pytest.raises(ProtocolError, match="that the protocol does not have"):
            decoder.feed(b"x")
    for never in (b"\n", b"DELETED\r\n\n", b"x" * 254 + b"\n"):
        with pytest.raises(ProtocolError, match="that the protocol does not have"):
            Decoder().feed(never)


def test_a_body_has_as_many_bytes_as_are_allowed_and_no_more():
    assert Decoder(max_body=3).feed(b"RESERVED 1 3\r\nabc\r\n") == [Reply("RESERVED", 1, b"abc")]
    with pytest.raises(ProtocolError, match=r"a body of 4 bytes \(3 are allowed\)"):
        Decoder(max_body=3).feed(b"RESERVED 1 4\r\n")


def test_numbers_go_as_far_as_a_server_takes_them():
    assert wire.put(b"", wire.MAX_NUMBER, wire.MAX_NUMBER, wire.MAX_NUMBER).count(b"4294967295") == 3
    assert wire.reserve_with_timeout(wire.MAX_WAIT) == b"reserve-with-timeout 1073741824\r\n"
    for command, argument in [(wire.reserve_with_timeout, wire.MAX_WAIT + 1), (wire.kick, wire.MAX_NUMBER + 1)]:
        with pytest.raises(WrongUse, match="out of range"):
            command(argument)
    assert wire.delete(0) == b"delete 0\r\n"


def test_a_reply_that_is_an_error_is_fatal_where_what_follows_may_be_no_reply():
    assert {word: wire.error_of(Reply(word)).fatal for word in wire.ERRORS} == {
        word: word in {"BAD_FORMAT", "UNKNOWN_COMMAND", "EXPECTED_CRLF"} for word in wire.ERRORS
    }
