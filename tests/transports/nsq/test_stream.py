"""TLS and compression over a socket that takes and gives what it likes: every byte once, in order, and none left inside."""

from __future__ import annotations

import os
import ssl
import threading
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import ProtocolError
from framework.testing.certificates import Authority
from framework.testing.servers import ServerMissing
from framework.transports.nsq import stream as streams
from framework.transports.nsq import wire
from framework.transports.nsq.dial import dial
from framework.transports.nsq.stream import Deflate, Snappy, Stream, Tls, begun
from framework.transports.nsq.urls import Options
from tests.conftest import missing

IDENTITY = b'{"version":"1","max_rdy_count":1,"msg_timeout":1,"max_msg_timeout":1,"deflate":true,"snappy":true}'


class Pipe:
    """A socket that takes and gives ``sizes`` bytes at a time in turn, 0 meaning that it would block; then all."""

    def __init__(self, sizes: list[int], data: bytes = b"") -> None:
        self.sizes = list(sizes)
        self.data = data
        self.sent = b""
        self.closed = False

    def _next(self, most: int) -> int:
        size = min(self.sizes.pop(0), most) if self.sizes else most
        if not size:
            raise BlockingIOError
        return size

    def send(self, data: memoryview) -> int:
        size = self._next(len(data))
        self.sent += data[:size]
        return size

    def recv(self, size: int) -> bytes:
        if not self.data:
            return b""
        some = self._next(min(size, len(self.data)))
        data, self.data = self.data[:some], self.data[some:]
        return data

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    try:
        authority = Authority(tmp_path_factory.mktemp("ca"))
    except ServerMissing as error:
        missing(str(error))
    pair = authority.sign("server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.cert, pair.key)
    return ssl.create_default_context(cafile=str(authority.cert)), server


def test_a_server_knows_its_client_by_the_common_name_of_the_certificate(contexts, tmp_path):
    """What an authorization server is asked about."""
    authority = Authority(tmp_path)
    pair = authority.sign("web1", organization="shop")
    client = ssl.create_default_context(cafile=str(authority.cert))
    client.load_cert_chain(pair.cert, pair.key)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.cert))
    server.load_cert_chain(pair.cert, pair.key)
    server.verify_mode = ssl.CERT_REQUIRED
    assert tls_ends((client, server))[1].peer_name == "web1"
    assert tls_ends(contexts)[1].peer_name == "", "a client without a certificate"


def tls_ends(contexts) -> tuple[Tls, Tls]:
    client, server = Tls(contexts[0], "localhost"), Tls(contexts[1], None, server_side=True)
    done, to_server = client.shake(b"")
    there = False
    while not (done and there):
        there, to_client = server.shake(to_server)
        if not done:
            done, to_server = client.shake(to_client)
    client.decode(to_client)  # session tickets
    return client, server


@pytest.fixture(params=["deflate", "snappy", "tls"])
def ends(request, contexts):
    """A function that makes two codecs, each of which decodes what the other encoded."""
    return {
        "deflate": lambda: (Deflate(6), Deflate(1)),
        "snappy": lambda: (Snappy(), Snappy()),
        "tls": lambda: tls_ends(contexts),
    }[request.param]


def sent_all(stream: Stream, data: bytes) -> None:
    """As a connection does it: the rest again, whenever the socket takes more."""
    left = memoryview(data)
    while left:
        try:
            left = left[stream.send(left) :]
        except BlockingIOError:
            assert stream.begun <= len(left)


def received_all(stream: Stream) -> bytes:
    got = []
    while True:
        try:
            data = stream.recv(65536)
        except BlockingIOError:
            continue
        if not data:
            return b"".join(got)
        got.append(data)


SIZES = st.lists(st.integers(0, 300), max_size=60)


@pytest.mark.parametrize("chunk", [7, streams.CHUNK])
def test_every_byte_goes_through_once_whatever_the_socket_takes_and_gives(ends, chunk, monkeypatch):
    monkeypatch.setattr(streams, "CHUNK", chunk)

    @given(st.lists(st.binary(min_size=1, max_size=400), max_size=8), SIZES, SIZES)
    def check(pieces: list[bytes], taken: list[int], given_: list[int]) -> None:
        here, there = ends()
        out = Pipe(taken)
        sender = Stream(out, here)
        for piece in pieces:
            sent_all(sender, piece)
        assert begun(sender) == 0
        assert received_all(Stream(Pipe(given_, out.sent), there)) == b"".join(pieces)

    check()


def test_two_layers_are_as_good_as_one(contexts):
    client, server = tls_ends(contexts)
    body = os.urandom(500_000) + b"a" * 500_000
    out = Pipe([1000, 0, 1, 0, 0, 5] * 20)
    sent_all(Stream(Stream(out, client), Deflate(6)), body)
    assert received_all(Stream(Stream(Pipe([3, 0, 700] * 50, out.sent), server), Deflate(6))) == body


def test_nothing_that_could_be_decoded_waits_inside(ends):
    """The watcher of a socket does not fire for bytes that were read from it already."""
    here, there = ends()
    out = Pipe([])
    sender, receiver = Stream(out, here), Stream(given := Pipe([]), there)
    for n in (1, 100, 20_000, 70_000):
        sent_all(sender, b"x" * n)
        given.data, out.sent = out.sent, b""
        got = 0
        while given.data:
            got += len(receiver.recv(65536))
        assert got == n


def test_what_was_begun_and_refused_may_have_reached_the_peer_and_is_said(ends):
    here, _ = ends()
    stream = Stream(Pipe([3, 0, 0]), here)
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            stream.send(memoryview(b"command\n"))
        assert begun(stream) == len(b"command\n")
    assert stream.send(memoryview(b"command\nand more")) == len(b"command\nand more")
    assert begun(stream) == 0


def test_a_stream_that_has_ended_stays_so(ends):
    _, there = ends()
    stream = Stream(Pipe([]), there)
    assert (stream.recv(10), stream.recv(10)) == (b"", b"")


def test_the_end_of_tls_is_the_end_of_the_stream(contexts):
    client, server = tls_ends(contexts)
    out = Pipe([])
    stream = Stream(out, client)
    sent_all(stream, b"last words")
    stream.close()
    assert out.closed
    peer = Stream(Pipe([], out.sent), server)
    assert peer.recv(100) == b"last words"
    assert peer.recv(100) == b""


def test_closing_in_the_middle_of_a_record_adds_nothing_to_it(contexts):
    client, _ = tls_ends(contexts)
    out = Pipe([10, 0])
    stream = Stream(out, client)
    with pytest.raises(BlockingIOError):
        stream.send(memoryview(b"x" * 100))
    stream.close()
    assert (len(out.sent), out.closed) == (10, True)


@pytest.mark.parametrize("codec", [lambda: Deflate(6), Snappy], ids=["deflate", "snappy"])
@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 40, b"\xff\x06\x00\x00sNaPpY\x01\x08\x00\x00garbage!"]
)
def test_garbage_is_a_protocol_error_with_its_bytes(codec, data):
    with pytest.raises(ProtocolError, match=r"not an nsqd's bytes: bad (deflate|snappy)") as caught:
        Stream(Pipe([], data), codec()).recv(65536)
    assert repr(data[:8])[2:-1] in str(caught.value)


def test_a_deflate_stream_that_ends_is_a_protocol_error():
    whole = zlib.compressobj(6, zlib.DEFLATED, -15)
    data = whole.compress(b"x") + whole.flush()
    with pytest.raises(ProtocolError, match="it ended"):
        Stream(Pipe([], data), Deflate(6)).recv(65536)


def test_garbage_under_tls_is_an_os_error(contexts):
    client, _ = tls_ends(contexts)
    with pytest.raises(OSError, match="SSL"):
        Stream(Pipe([], b"HTTP/1.1 400 Bad Request\r\n\r\n"), client).recv(65536)


def test_native_threads_may_share_a_stream_under_one_lock(ends):
    here, there = ends()
    out = Pipe([50, 0, 7] * 300)
    stream, lock, tail = Stream(out, here), threading.Lock(), bytearray()
    pieces = [bytes([65 + n]) * 50 + b"\n" for n in range(4)]

    def flush() -> bool:
        try:
            del tail[: stream.send(memoryview(bytes(tail)))]
        except BlockingIOError:
            pass
        return not tail

    def work(piece: bytes) -> None:
        for _ in range(50):
            with lock:
                tail.extend(piece)
                flush()

    threads = [threading.Thread(target=work, args=(piece,)) for piece in pieces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while not flush():
        pass
    lines = received_all(Stream(Pipe([], out.sent), there)).splitlines(keepends=True)
    assert sorted(lines) == sorted(pieces * 50)


# --- between two layers ------------------------------------------------------------------------------------


@pytest.fixture
def serving(listening):
    """``serving(script)``: reads IDENTIFY, which the script answers."""

    def start(script) -> str:
        def serve(sock) -> None:
            file = sock.makefile("rb")
            file.read(4)
            file.readline()
            file.read(int.from_bytes(file.read(4)))
            script(sock, file)

        return listening(serve)

    return start


@pytest.mark.parametrize(("what", "codec"), [("deflate", lambda: Deflate(6)), ("snappy", Snappy)])
def test_bytes_behind_the_last_plain_frame_belong_to_the_next_layer(serving, what, codec):
    def script(sock, file) -> None:
        ours = codec()
        ok, heartbeat = (wire.encode_frame(0, data) for data in (wire.OK, wire.HEARTBEAT))
        sock.sendall(wire.encode_frame(0, IDENTITY) + ours.encode(memoryview(heartbeat + ok + heartbeat + ok[:3])))
        answers = b""
        while answers != wire.NOP * 2:
            answers += ours.decode(sock.recv(100))
        sock.sendall(ours.encode(memoryview(ok[3:] + heartbeat)))
        file.read()

    with dial(serving(script), Options(**{what: True})) as line:
        assert line.ask() == wire.OK
        stream = line.release()
        assert (isinstance(stream, Stream), line.events) == (True, [wire.HEARTBEAT])
        stream.close()


def test_a_peer_that_forgets_the_ok_of_a_layer_is_not_trusted(serving):
    def script(sock, file) -> None:
        sock.sendall(wire.encode_frame(0, IDENTITY) + Deflate(6).encode(memoryview(wire.encode_frame(0, b"KO"))))
        file.read()

    with pytest.raises(ProtocolError, match="answered deflate with b'KO'"), dial(serving(script), Options(deflate=True)):
        pass


def test_nothing_is_sent_before_a_layer_is_answered(serving):
    """nsqd replaces its reader at each upgrade: what came early would be lost."""
    seen = []

    def script(sock, file) -> None:
        sock.sendall(wire.encode_frame(0, IDENTITY))
        sock.settimeout(0.3)
        try:
            seen.append(sock.recv(100))
        except TimeoutError:
            seen.append(b"")
        ours = Deflate(6)
        sock.sendall(ours.encode(memoryview(wire.encode_frame(0, wire.OK))))
        seen.append(ours.decode(sock.recv(100)))
        sock.sendall(ours.encode(memoryview(wire.encode_frame(0, wire.OK))))

    with dial(serving(script), Options(deflate=True)) as line:
        line.expect_ok("SUB", wire.sub("orders", "billing"))
    assert seen == [b"", wire.sub("orders", "billing")]
