"""TLS, snappy, deflate and AUTH: the same sessions with a real nsqd v1.3.0 and with ours, the same frames and /stats."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import snappy

from framework.testing import servers
from framework.testing.certificates import Authority, Pair
from framework.testing.servers import Server

pytestmark = pytest.mark.real

VARIES = ("remote_address", "connect_ts", "tls_cipher_suite")
"""Go and OpenSSL prefer different ciphers."""
Servers = Callable[..., tuple[Server, Server]]


class Session:
    """A client that can speak through the layers that it asks for."""

    def __init__(self, server: Server) -> None:
        self.sock: socket.socket = socket.create_connection(("127.0.0.1", server.tcp_port), 10)
        self.sock.sendall(b"  V2")
        self._deflate: Any = None
        self._inflate: Any = None
        self._snappy: Any = None
        self._buffer = b""

    def send(self, data: bytes) -> None:
        if self._deflate:
            data = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        elif self._snappy:
            data = self._snappy[0].compress(data)
        try:
            self.sock.sendall(data)
        except OSError:
            pass  # ended by the server: what it said before is read all the same

    def frame(self) -> tuple[int, bytes] | None:
        """The next one that is no heartbeat; None at the end."""
        while True:
            head = self._take(4)
            body = head and self._take(int.from_bytes(head, "big"))
            if not body:
                return None
            if body[4:] != b"_heartbeat_":
                return int.from_bytes(body[:4], "big"), body[4:]

    def _take(self, count: int) -> bytes | None:
        while len(self._buffer) < count:
            try:
                data = self.sock.recv(1 << 16)
            except TimeoutError:
                raise
            except OSError:
                data = b""
            if not data:
                return None
            self._buffer += self._decoded(data)
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _decoded(self, data: bytes) -> bytes:
        if self._inflate:
            return self._inflate.decompress(data)
        return self._snappy[1].decompress(data) if self._snappy else data

    def identify(self, **wishes: Any) -> dict[str, Any] | bytes:
        """What the server grants, or its error."""
        body = json.dumps({"feature_negotiation": True, "client_id": "me", "hostname": "box"} | wishes).encode()
        self.send(b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        frame = self.frame()
        assert frame is not None
        return json.loads(frame[1]) if frame[0] == 0 else frame[1]

    def secure(self, cert: Pair | None = None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = version
        if cert is not None:
            context.load_cert_chain(cert.cert, cert.key)
        self.sock = context.wrap_socket(self.sock)

    def compress(self, granted: dict[str, Any]) -> None:
        if granted["deflate"]:
            self._deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        else:
            self._snappy = snappy.StreamCompressor(), snappy.StreamDecompressor()
        early, self._buffer = self._buffer, b""  # the OK may have come with the answer
        self._buffer = self._decoded(early) if early else b""

    def end(self) -> list[tuple[int, bytes]]:
        """All frames up to the end of the connection."""
        found = []
        while (frame := self.frame()) is not None:
            found.append(frame)
        return found

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def wait_for(what: Callable[[], Any], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    try:
        return Authority(tmp_path_factory.mktemp("ca"))
    except servers.ServerMissing as error:
        _missing(error)
        raise


def _missing(error: servers.ServerMissing) -> None:
    if os.environ.get("CI"):
        pytest.fail(str(error))
    pytest.skip(str(error))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Servers]:
    """Starts a real nsqd and ours with the same flags: ``start("--tls-required")``."""
    started: list[Server] = []
    pair = authority.sign("nsqd")

    def both(*flags: str, certificate: bool = True) -> tuple[Server, Server]:
        files = [f"--tls-cert={pair.cert}", f"--tls-key={pair.key}"] if certificate else []
        made = []
        for make in (servers.real_nsqd, servers.own_nsqd):
            https = f"--https-address=127.0.0.1:{servers.free_port()}"
            try:
                server = make(tmp_path_factory.mktemp("data"), https, *files, *flags)
            except servers.ServerMissing as error:
                _missing(error)
                raise
            server.start()
            started.append(server)
            made.append(server)
        return made[0], made[1]

    yield both
    for server in started:
        server.kill()


@pytest.fixture(scope="module")
def open_pair(start: Servers) -> tuple[Server, Server]:
    """With a certificate, and clients without TLS let in too."""
    return start("--max-deflate-level=7")


def https_port(server: Server) -> int:
    flag = next(one for one in server.command if one.startswith("--https-address"))
    return int(flag.rpartition(":")[2])


WISHES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "TLS": {"tls_v1": True},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True},
    "deflate at a level": {"deflate": True, "deflate_level": 3},
    "deflate above the most": {"deflate": True, "deflate_level": 9},
    "deflate below the least": {"deflate": True, "deflate_level": -1},
    "a level without deflate": {"deflate_level": 3},
    "both compressions": {"deflate": True, "snappy": True},
    "all of it": {"deflate": True, "snappy": True, "tls_v1": True},
    "no negotiation": {"feature_negotiation": False, "tls_v1": True, "snappy": True},
}


@pytest.mark.parametrize("name", WISHES)
def test_grants_what_nsqd_grants(open_pair: tuple[Server, Server], name: str) -> None:
    said = []
    for server in open_pair:
        with Session(server) as client:
            if WISHES[name].get("feature_negotiation", True):
                said.append(client.identify(**WISHES[name]))
            else:
                client.send(b"IDENTIFY\n" + sized(json.dumps(WISHES[name]).encode()))
                said.append(client.frame())
    assert said[1] == said[0]


@pytest.mark.parametrize("compression", ["", "snappy", "deflate"])
@pytest.mark.parametrize("tls", ["", "TLSv1_2", "TLSv1_3"])
def test_a_session_through_layers(open_pair: tuple[Server, Server], tls: str, compression: str) -> None:
    topic = f"t-{tls}-{compression}".encode()
    large = os.urandom(100_000) + bytes(300_000)
    said = []
    for server in open_pair:
        with Session(server) as client:
            granted = client.identify(tls_v1=bool(tls), **({compression: True} if compression else {}))
            assert isinstance(granted, dict)
            frames: list[Any] = [granted]
            if tls:
                client.secure(version=ssl.TLSVersion[tls])
                frames.append(client.frame())
            if compression:
                client.compress(granted)
                frames.append(client.frame())
            client.send(b"SUB " + topic + b" c\n")
            frames.append(client.frame())
            client.send(b"PUB " + topic + b"\n" + sized(large) + b"RDY 1\n")
            received = sorted([client.frame() or (9, b""), client.frame() or (9, b"")])
            frames += [received[0], received[1][0], received[1][1][8:10], received[1][1][26:] == large]
            client.send(b"FIN " + received[1][1][10:26] + b"\n")
            wait_for(lambda server=server: server.channel_stats(topic.decode(), "c")["clients"][0]["finish_count"] == 1)
            (shown,) = server.channel_stats(topic.decode(), "c")["clients"]
            frames.append({key: value for key, value in shown.items() if key not in VARIES})
            client.send(b"NONSENSE\n")
            frames.append(client.end())
            said.append(frames)
    assert said[1] == said[0]


def test_what_is_sent_before_the_handshake_is_no_command(open_pair: tuple[Server, Server]) -> None:
    """Anybody between could have put it there."""
    _, own = open_pair
    with Session(own) as client:
        body = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
        client.send(b"IDENTIFY\n" + sized(body) + b"PUB injected\n" + sized(b"x"))
        with pytest.raises(OSError):
            client.frame()
            client.secure()
            client.send(b"NOP\n")
            assert client.end() == []
            raise ConnectionError
    assert "injected" not in [one["topic_name"] for one in own.http("/stats?format=json")["topics"]]


def test_a_client_that_breaks_the_handshake_or_a_layer_harms_no_other(open_pair: tuple[Server, Server]) -> None:
    _, own = open_pair
    for wishes in ({"tls_v1": True}, {"snappy": True}, {"deflate": True}):
        with Session(own) as client:
            client.identify(**wishes)
            client.send(b"this is neither TLS nor compressed" * 3)
            client.sock.shutdown(socket.SHUT_WR)
            try:
                while client.sock.recv(1000):
                    pass
            except ConnectionResetError:
                pass
    assert own.http("/ping") == "OK"


def test_https_is_http_through_tls(open_pair: tuple[Server, Server]) -> None:
    said = []
    for server in open_pair:
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", https_port(server), timeout=10, context=context)
        connection.request("POST", "/pub?topic=https", b"x")
        answer = connection.getresponse()
        said.append((answer.status, answer.read(), server.http("/stats?format=json&topic=https")["topics"][0]["depth"]))
        connection.close()
    assert said[1] == said[0] == (200, b"OK", 1)


@pytest.mark.parametrize("required", ["true", "tcp-https"])
def test_nothing_is_let_in_without_tls_where_it_is_required(start: Servers, required: str) -> None:
    said = []
    for server in start(f"--tls-required={required}"):
        answers: list[Any] = []
        for command in (b"NOP\n", b"SUB t c\n", b"PUB t\n" + sized(b"x"), b"AUTH\n" + sized(b"x"), b"nonsense\n", b"\n"):
            with Session(server) as client:
                client.send(command)
                answers.append(client.end())
        with Session(server) as client:
            answers.append(client.identify(tls_v1=False))
            client.send(b"PUB t\n" + sized(b"x"))
            answers.append(client.end())
        with Session(server) as client:
            answers.append(client.identify(tls_v1=True))
            client.secure()
            answers.append(client.frame())
            client.send(b"PUB t\n" + sized(b"x"))
            answers.append(client.frame())
        for path in ("/ping", "/info", "/nothing"):
            connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=10)
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().replace(str(https_port(server)).encode(), b"0")
            answers.append((path, answer.status, json.loads(text) if b"TLS_REQUIRED" in text else ""))
            connection.close()
        said.append([one if not isinstance(one, dict) else one["tls_v1"] for one in answers])
    assert said[1] == said[0]


def test_clients_need_a_certificate_of_the_right_authority_where_it_is_verified(
    start: Servers, authority: Authority, tmp_path: Path
) -> None:
    good, stranger = authority.sign("client"), Authority(tmp_path, "other").sign("stranger")
    said = []
    for server in start("--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={authority.cert}"):
        let_in = []
        for certificate in (good, stranger, None):
            with Session(server) as client:
                client.identify(tls_v1=True)
                try:
                    client.secure(certificate)
                    let_in.append(client.frame())
                except OSError:
                    let_in.append(None)
        said.append(let_in)
    assert said[1] == said[0] == [(0, b"OK"), None, None]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tls-required"], "cannot require TLS client connections without TLS key and cert"),
        (["--tls-client-auth-policy=require"], "cannot require TLS client connections without TLS key and cert"),
        (["--tls-cert=/nowhere.pem", "--tls-key=/nowhere.key"], "cannot use -tls-cert /nowhere.pem with -tls-key /nowhere.key"),
    ],
)
def test_what_cannot_be_kept_closed_is_not_opened(tmp_path: Path, flags: list[str], words: str) -> None:
    server = servers.own_nsqd(tmp_path / "data", *flags)
    with pytest.raises(RuntimeError, match=words):
        server.start()
    assert not (tmp_path / "data").exists()


# --- AUTH ------------------------------------------------------------------------------------------------------------


class Door:
    """An auth server: answers every request with ``answer``, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answer: Any = {}
        self.status = 200
        self.asked: list[dict[str, list[str]]] = []
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                door.asked.append(parse_qs(urlsplit(self.path).query, keep_blank_values=True))
                body = json.dumps(door.answer).encode()
                self.send_response(door.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    door = Door()
    yield door
    door.server.shutdown()
    door.server.server_close()


@pytest.fixture(scope="module")
def guarded(start: Servers, door: Door) -> tuple[Server, Server]:
    return start(f"--auth-http-address=127.0.0.1:{door.server.server_port}")


def may(topic: str, *permissions: str, channels: tuple[str, ...] = (".*",)) -> dict[str, Any]:
    return {"topic": topic, "channels": list(channels), "permissions": list(permissions)}


def answer(*authorizations: dict[str, Any], ttl: Any = 60) -> dict[str, Any]:
    return {"ttl": ttl, "identity": "me", "identity_url": "http://me", "authorizations": list(authorizations)}


AUTH = b"AUTH\n" + sized(b"secret")
PUB = b"PUB orders\n" + sized(b"x")
DPUB = b"DPUB orders 0\n" + sized(b"x")
MPUB = b"MPUB orders\n" + sized(struct.pack(">i", 1) + sized(b"x"))
ALL = answer(may("orders", "publish", "subscribe"))
ROWS: dict[str, tuple[Any, bytes]] = {
    "before AUTH": (ALL, PUB),
    "DPUB before AUTH": (ALL, DPUB),
    "MPUB before AUTH": (ALL, MPUB),
    "SUB before AUTH": (ALL, b"SUB orders c\n"),
    "all allowed": (ALL, AUTH + PUB + DPUB + MPUB + b"SUB orders c\n"),
    "another topic": (ALL, AUTH + b"PUB other\n" + sized(b"x")),
    "a pattern is found anywhere": (ALL, AUTH + b"PUB my-orders-2\n" + sized(b"x")),
    "an anchored pattern": (answer(may("^orders$", "publish")), AUTH + b"PUB my-orders\n" + sized(b"x")),
    "only publishing": (answer(may("orders", "publish")), AUTH + PUB + b"SUB orders c\n"),
    "only subscribing": (answer(may("orders", "subscribe")), AUTH + b"SUB orders c\n" + PUB),
    "MPUB is refused before its body": (answer(may("orders", "subscribe")), AUTH + b"MPUB orders\n"),
    "DPUB is refused": (answer(may("orders", "subscribe")), AUTH + DPUB),
    "another channel": (answer(may("orders", "subscribe", channels=("^a$",))), AUTH + b"SUB orders b\n"),
    "publishing where channels are named": (answer(may("orders", "publish", channels=("^a$",))), AUTH + PUB),
    "the second authorization": (answer(may("x", "publish"), may("orders", "publish")), AUTH + PUB),
    "AUTH twice": (ALL, AUTH + AUTH),
    "AUTH with a parameter": (ALL, b"AUTH x\n" + sized(b"x")),
    "AUTH after SUB": (ALL, AUTH + b"SUB orders c\n" + AUTH),
    "no authorizations": (answer(), AUTH),
    "authorizations null": ({"ttl": 5, "authorizations": None}, AUTH),
    "no TTL": (answer(may("orders", "publish"), ttl=0), AUTH),
    "a TTL of another type": (answer(may("orders", "publish"), ttl="5"), AUTH),
    "an unknown permission": (answer(may("orders", "fly")), AUTH),
    "a pattern that is none": (answer(may("(", "publish")), AUTH),
    "an answer that is no object": ([1], AUTH),
}


@pytest.mark.parametrize("name", ROWS)
def test_lets_in_whom_nsqd_lets_in(guarded: tuple[Server, Server], door: Door, name: str) -> None:
    door.answer, commands = ROWS[name]
    said = []
    for server in guarded:
        door.asked.clear()
        with Session(server) as client:
            client.send(commands + b"THE END\n")
            said.append((client.end(), list(door.asked)))
    assert said[1] == said[0]


def test_the_answer_is_asked_for_again_when_it_is_old(guarded: tuple[Server, Server], door: Door) -> None:
    said = []
    for server in guarded:
        door.answer = answer(may("orders", "publish"), ttl=1)
        with Session(server) as client:
            client.send(AUTH + PUB)
            frames = [client.frame(), client.frame()]
            door.answer = answer(may("nothing", "publish"), ttl=1)
            time.sleep(1.1)  # the server's clock, not ours
            client.send(PUB)
            said.append(frames + client.end())
    assert said[1] == said[0]
    assert said[1][-1] == (1, b'E_UNAUTHORIZED AUTH failed for PUB on "orders" ""')


def test_an_auth_server_that_fails_lets_nobody_in(guarded: tuple[Server, Server], door: Door) -> None:
    door.answer, door.status = ALL, 500
    said = []
    for server in guarded:
        with Session(server) as client:
            client.send(AUTH)
            said.append(client.end())
    door.status = 200
    assert said[1] == said[0] == [(1, b"E_AUTH_FAILED AUTH failed")]


def test_stats_name_who_is_in_and_the_auth_server_learns_the_certificates_name(
    guarded: tuple[Server, Server], door: Door, authority: Authority
) -> None:
    door.answer, said = ALL, []
    for server in guarded:
        door.asked.clear()
        with Session(server) as client:
            granted = client.identify(tls_v1=True)
            assert isinstance(granted, dict)
            client.secure()
            client.frame()
            client.send(AUTH + b"SUB orders who\n")
            frames = [client.frame(), client.frame()]
            (shown,) = server.channel_stats("orders", "who")["clients"]
            names = ("authed", "auth_identity", "auth_identity_url", "tls")
            said.append((granted["auth_required"], frames, [shown[name] for name in names], list(door.asked)))
    assert said[1] == said[0]
