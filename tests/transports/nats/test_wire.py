"""NATS's bytes: every event on any split, however it is written, and no garbage that is taken for one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import BadMessage, BadName, ProtocolError
from framework.transports.nats import headers, route_wire, wire
from framework.transports.nats.route_wire import Connect, Interest, NoInterest, Routed, RouteDecoder
from framework.transports.nats.wire import ClientDecoder, Err, Info, Msg, Word

words = st.sampled_from([b"a", b"$G", b"$JS.ACK.ORDERS.W.1.1.1.9.0@orders.new", b"7", b"_INBOX.x-Y~z.1", b"RMSG", b"q" * 200])
bodies = st.binary(max_size=300) | st.just(b"\r\nPING\r\nMSG a 1 3\r\n") | st.binary(min_size=900, max_size=3000)
blocks = st.just(b"") | st.binary(max_size=60).map(lambda data: b"NATS/1.0\r\nA: " + data + b"\r\n\r\n")
sids = st.integers(0, 10**11)
errors = st.sampled_from(["Authorization Violation", "Unknown Protocol Operation", ""])
infos = st.sampled_from([Info(), Info(server_id="Nü", max_payload=2**26, connect_urls=["h:4222", "[::1]:4222"], ldm=True)])

client_events = st.one_of(
    st.builds(Msg, words, sids, st.just(b"") | words, blocks, bodies),
    st.sampled_from(list(Word)),
    st.builds(Err, errors),
    infos,
)
route_events = st.one_of(
    st.builds(Routed, words, words, st.just(b"") | words, st.lists(words, max_size=3).map(tuple), blocks, bodies),
    st.builds(Routed, words, words, st.just(b""), st.just(()), blocks, bodies, origin=words),
    st.builds(Interest, words, words, words, st.integers(-5, 10**6)),
    st.builds(Interest, words, words, origin=st.just(b"") | words),
    st.builds(NoInterest, words, words, st.just(b"") | words, origin=st.just(b"") | words),
    st.sampled_from([Connect(), Connect(name="N", cluster="C", user="ü", password="p w")]),
    st.sampled_from([Word.PING, Word.PONG, Word.OK]),
    st.builds(Err, errors),
    infos,
)


def encode_client(event) -> bytes:
    """As a server sends it to a client."""
    if isinstance(event, Msg):
        reply = event.reply + b" " if event.reply else b""
        total = len(event.headers) + len(event.body)
        if event.headers:
            return b"HMSG %b %d %b%d %d\r\n%b%b\r\n" % (
                event.subject, event.sid, reply, len(event.headers), total, event.headers, event.body,
            )  # fmt: skip
        return b"MSG %b %d %b%d\r\n%b\r\n" % (event.subject, event.sid, reply, total, event.body)
    if isinstance(event, Word):
        return event.value + b"\r\n"
    if isinstance(event, Err):
        return b"-ERR '%b'\r\n" % event.words.encode()
    return wire.info(msgspec.to_builtins(event))[:-2] + b" \r\n"  # servers leave a space there


def encode_route(event) -> bytes:
    """As a server sends it to another."""
    if isinstance(event, Routed) and event.origin:
        total = len(event.headers) + len(event.body)
        head = b"LMSG %b %b %b %d %d\r\n" % (event.origin, event.account, event.subject, len(event.headers), total)
        return head + event.headers + event.body + b"\r\n"
    if isinstance(event, Routed):
        return route_wire.routed(event)
    if isinstance(event, Interest | NoInterest):
        line = route_wire.interest(event) if isinstance(event, Interest) else route_wire.no_interest(event)
        return line.replace(b"RS", b"LS", 1).replace(b" ", b" %b " % event.origin, 1) if event.origin else line
    if isinstance(event, Connect):
        return wire.connect(msgspec.to_builtins(event))
    return encode_client(event)


SIDES = [(ClientDecoder, client_events, encode_client), (RouteDecoder, route_events, encode_route)]
sides = pytest.mark.parametrize(("decoder_of", "events", "encode"), SIDES, ids=["client", "route"])


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted(cuts)
    return [stream[start:end] for start, end in zip([0, *at], [*at, len(stream)], strict=True)]


@sides
@given(data=st.data())
def test_events_are_the_same_however_the_stream_is_cut(decoder_of, events, encode, data):
    sent = data.draw(st.lists(events, max_size=12))
    stream = b"".join(map(encode, sent))
    decoder, got = decoder_of(), []
    for piece in cut(stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=20))):
        got += decoder.feed(piece)
    assert got == sent


@sides
@given(data=st.data())
def test_events_are_the_same_when_they_come_byte_by_byte(decoder_of, events, encode, data):
    sent = data.draw(st.lists(events, max_size=4))
    decoder, got = decoder_of(), []
    for byte in b"".join(map(encode, sent)):
        got += decoder.feed(bytes([byte]))
    assert got == sent


@sides
@given(pieces=st.lists(st.binary(min_size=1, max_size=600), max_size=8))
def test_garbage_is_refused_or_waited_for_and_never_crashes(decoder_of, events, encode, pieces):
    decoder = decoder_of()
    try:
        for piece in pieces:
            decoder.feed(piece)
    except ProtocolError:
        pass


@sides
@given(data=st.data())
def test_a_stream_that_is_changed_in_one_place_never_crashes_a_decoder(decoder_of, events, encode, data):
    stream = bytearray(b"".join(map(encode, data.draw(st.lists(events, min_size=1, max_size=4)))))
    stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    decoder = decoder_of()
    try:
        for piece in cut(bytes(stream), data.draw(st.lists(st.integers(0, len(stream)), max_size=4))):
            decoder.feed(piece)
    except ProtocolError:
        pass


# --- however it is written ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "event"),
    [
        (b"msg a.b 7 2\nhi\r\n", Msg(b"a.b", 7, b"", b"", b"hi")),
        (b"MSG\ta.b  7\tr.1 2\r\nhi\r\n", Msg(b"a.b", 7, b"r.1", b"", b"hi")),
        (b"MSG a.b 7 9 2\r\nhi\r\n", Msg(b"a.b", 7, b"9", b"", b"hi")),
        (b"hMsg a.b 7 12 14\nNATS/1.0\r\n\r\nhi\r\n", Msg(b"a.b", 7, b"", b"NATS/1.0\r\n\r\n", b"hi")),
        (b"HMSG a 7 12 12 12\r\nNATS/1.0\r\n\r\n\r\n", Msg(b"a", 7, b"12", b"NATS/1.0\r\n\r\n", b"")),
        (b"ping\n", Word.PING),
        (b"PONG \r\n", Word.PONG),
        (b"+ok\r\n", Word.OK),
        (b"-err 'Authorization Violation'\r\n", Err("Authorization Violation")),
        (b"info\t{} \n", Info()),
    ],
)
def test_clients_operations_in_any_case_with_tabs_and_bare_line_feeds(stream, event):
    assert ClientDecoder().feed(stream) == [event]


@pytest.mark.parametrize(
    ("stream", "event"),
    [
        (b"RMSG $G a 2\r\nhi\r\n", Routed(b"$G", b"a", b"", (), b"", b"hi")),
        (b"rmsg\t$G a r 2\nhi\r\n", Routed(b"$G", b"a", b"r", (), b"", b"hi")),
        (b"RMSG $G a | q1 q2 2\r\nhi\r\n", Routed(b"$G", b"a", b"", (b"q1", b"q2"), b"", b"hi")),
        (b"RMSG $G a + r q1 2\r\nhi\r\n", Routed(b"$G", b"a", b"r", (b"q1",), b"", b"hi")),
        (
            b"HMSG $G foo | workers 18 25\r\nNATS/1.0\r\nA: 1\r\n\r\nwithhdr\r\n",
            Routed(b"$G", b"foo", b"", (b"workers",), b"NATS/1.0\r\nA: 1\r\n\r\n", b"withhdr"),
        ),
        (b"LMSG leaf $G a r 0 2\r\nhi\r\n", Routed(b"$G", b"a", b"r", (), b"", b"hi", b"leaf")),
        (b"RS+ $G foo workers 10\r\n", Interest(b"$G", b"foo", b"workers", 10)),
        (b"RS+ $G foo\r\n", Interest(b"$G", b"foo")),
        (b"RS- $G foo workers\r\n", NoInterest(b"$G", b"foo", b"workers")),
        (b"LS+ leaf $G foo q 1\r\n", Interest(b"$G", b"foo", b"q", 1, b"leaf")),
        (b'CONNECT {"name":"N","user":"u","pass":"p"}\r\n', Connect(name="N", user="u", password="p")),
    ],
)
def test_what_servers_say_to_each_other(stream, event):
    assert RouteDecoder().feed(stream) == [event]


@pytest.mark.parametrize(
    "stream",
    [
        b"HTTP/1.1 400 Bad Request\r\n", b"\x16\x03\x01", b"\r\n", b" PING\r\n", b"PIN\r\n", b"MSG\r\n", b"MSG a 1\r\n",
        b"MSG a x 1\r\n", b"MSG a 1 -1\r\n", b"MSG a 1 r s 1\r\n", b"MSG a 1 2\r\nabc\r\n", b"MSG a 1 0\r\nxx", b"HMSG a 1 5\r\n",
        b"HMSG a 1 6 5\r\nhello\r\n", b"HMSG a 1 x 5\r\n", b"INFO\r\n", b"INFO {\r\n", b"INFO []\r\n",
        b'INFO {"max_payload":"x"}\r\n',
        b"INFO \xff\r\n", b"RMSG $G a 1\r\n", b"SUB a 1\r\n", b"CONNECT {}\r\n", b"MSG a 1 " + b"9" * 13 + b"\r\n",
    ],
)  # fmt: skip
def test_what_no_server_sends_to_a_client_is_an_error(stream):
    with pytest.raises(ProtocolError, match="not a nats-server's bytes"):
        ClientDecoder().feed(stream)


@pytest.mark.parametrize(
    "stream",
    [
        b"RMSG $G 1\r\n", b"RMSG $G a | 1\r\nx\r\n", b"RMSG $G a + r 1\r\nx\r\n", b"RMSG $G a r s 1\r\nx\r\n", b"RMSG $G a x\r\n",
        b"HMSG $G a 9 5\r\nhello\r\n", b"HMSG $G a r 9 5\r\nhello\r\n",
        b"LMSG leaf $G a 2\r\nhi\r\n", b"RS+ $G\r\n", b"RS+ $G foo workers\r\n",
        b"RS+ $G foo workers x\r\n",
        b"RS- $G\r\n", b"RS- $G foo workers 3\r\n", b"CONNECT\r\n", b"MSG a 1 1\r\nx\r\n", b"RS* $G a\r\n",
    ],
)  # fmt: skip
def test_what_no_server_sends_to_another_is_an_error(stream):
    with pytest.raises(ProtocolError, match="not a nats-server's bytes"):
        RouteDecoder().feed(stream)


# --- bounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [b"MSG a 1 1001\r\n", b"msg a 1 r 1001\n", b"HMSG a 1 12 1001\r\n", b"MSG a 1 9999999999\r\n"])
def test_a_message_over_max_payload_is_an_error_before_a_byte_of_it_is_kept(head):
    with pytest.raises(ProtocolError, match="1000 are allowed"):
        ClientDecoder(max_payload=1000).feed(head)


def test_routes_do_not_enforce_max_payload_and_the_decoder_does():
    for head in (b"RMSG $G a 1001\r\n", b"HMSG $G a | q 12 1001\r\n", b"LMSG o $G a 0 1001\r\n"):
        with pytest.raises(ProtocolError, match="1000 are allowed"):
            RouteDecoder(max_payload=1000).feed(head)
    with pytest.raises(BadMessage, match="1001 bytes"):
        wire.check_payload(1001, 1000, "a message")


@pytest.mark.parametrize("decoder_of", [ClientDecoder, RouteDecoder])
@pytest.mark.parametrize("piece", [1, 1000, 100_000])
def test_an_info_without_an_end_is_an_error_and_not_kept_for_ever(decoder_of, piece):
    decoder = decoder_of()
    decoder.feed(b'INFO {"server_id":"')
    with pytest.raises(ProtocolError, match="a line of more than"):
        for _ in range(0, 2 * wire.MAX_LINE, piece):
            decoder.feed(b"x" * piece)


@pytest.mark.parametrize("decoder_of", [ClientDecoder, RouteDecoder])
def test_a_body_in_many_pieces_is_joined_once(decoder_of):
    decoder = decoder_of()
    head = b"MSG a 1 8000000\r\n" if decoder_of is ClientDecoder else b"RMSG $G a 8000000\r\n"
    assert decoder.feed(head) == []
    for _ in range(999):
        assert decoder.feed(b"x" * 8000) == []
    [message] = decoder.feed(b"x" * 8000 + b"\r\n")
    assert message.body == b"x" * 8_000_000


# --- what is written ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (wire.pub(b"a", b"hi"), b"PUB a 2\r\nhi\r\n"),
        (wire.pub(b"a", b"", b"r"), b"PUB a r 0\r\n\r\n"),
        (wire.pub(b"a", b"hi", headers=b"NATS/1.0\r\n\r\n"), b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"),
        (wire.pub(b"a", b"hi", b"r", headers=b"NATS/1.0\r\n\r\n"), b"HPUB a r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"),
        (wire.sub(b"a.*", 7), b"SUB a.* 7\r\n"),
        (wire.sub(b"a.>", 7, b"q"), b"SUB a.> q 7\r\n"),
        (wire.unsub(7), b"UNSUB 7\r\n"),
        (wire.unsub(7, 3), b"UNSUB 7 3\r\n"),
        (wire.connect({"verbose": False}), b'CONNECT {"verbose":false}\r\n'),
        (route_wire.interest(Interest(b"$G", b"foo", b"workers", 10)), b"RS+ $G foo workers 10\r\n"),
        (route_wire.no_interest(NoInterest(b"$G", b"foo", b"workers")), b"RS- $G foo workers\r\n"),
    ],
)
def test_commands(command, expected):
    assert command == expected


@pytest.mark.parametrize("name", ["", "a b", "a..b", ".a", "a.", "a.*", ">", "a.>", "a\tb", "a\r\nPUB", "*", "a\0b"])
def test_a_subject_with_spaces_wildcards_or_empty_words_is_refused_by_a_sentence_that_shows_it(name):
    with pytest.raises(BadName) as refused:
        wire.subject(name)
    assert repr(name) in str(refused.value)


# --- headers -----------------------------------------------------------------------------------------------

names = st.text("AZaz09_-", min_size=1, max_size=20)
# To choose of all of Unicode takes seconds: these are of one byte to four, and what stands at an end, or looks like one.
values = st.text("az0: \t\0\x1f\x7f\x85é\u2028話\ufeff😀", max_size=40).filter(lambda text: text == text.strip(" \t"))


@given(st.lists(st.tuples(names, values), max_size=6))
def test_headers_come_back_as_they_were_non_ascii_included(fields):
    assert headers.decode(headers.encode(fields)) == fields


@given(st.binary(max_size=300))
def test_headers_that_are_none_are_passed_over(block):
    headers.decode(block)
    headers.status(block)
    headers.find(block, b"Nats-Msg-Id")


def test_a_value_that_is_not_utf_8_does_not_make_the_others_vanish():
    fields = dict(headers.decode(b"NATS/1.0\r\nA: 1\r\nB: \xff\xfe\r\nno colon\r\nC:3\r\n\r\n"))
    assert (fields["A"], fields["B"].encode(errors="surrogateescape"), fields["C"]) == ("1", b"\xff\xfe", "3")


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 3\r\n\r\n", (408, "Request Timeout")),
        (b"NATS/1.0 404 No Messages\r\n\r\n", (404, "No Messages")),
        (b"NATS/1.0 503\r\n\r\n", (503, "")),
        (b"NATS/1.0\r\nA: 408\r\n\r\n", (0, "")),
        (b"", (0, "")),
    ],
)
def test_a_status(block, said):
    assert headers.status(block) == said


def test_one_header_is_found_in_any_case_and_only_where_a_line_begins():
    block = b"NATS/1.0 408 x\r\nX-Nats-Pending: 1\r\nnats-pending:  22 \r\n\r\n"
    assert headers.find(block, b"Nats-Pending") == b"22"
    assert headers.find(block, b"Nats-Msg-Id") == b""


@pytest.mark.parametrize("field", [("", "x"), ("a b", "x"), ("a:b", "x"), ("ä", "x"), ("a", "x\r\nb: y"), ("a", "\udcff")])
def test_headers_that_would_not_arrive_are_refused(field):
    with pytest.raises(BadMessage, match="header"):
        headers.encode([field])
