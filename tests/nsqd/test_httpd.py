"""The HTTP server below the APIs, in this process: what an application is given, what a client is told, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from gevent import socket, ssl

from framework.nsqd import daemon
from framework.nsqd.httpd import GIVE_UP, LOOPBACK, HttpServer
from framework.testing.certificates import Authority

REFUSED = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
HOST = b"Host: localhost\r\n"

App = Callable[[dict[str, Any], Callable[..., Any]], list[bytes]]
Serve = Callable[..., int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """An application is served until the test ends; returns the port."""
    started: list[HttpServer] = []

    def serve(app: App, host: str = "127.0.0.1", **tls: Any) -> int:
        listener = socket.socket()
        listener.bind((host, 0))
        listener.listen()
        started.append(HttpServer(listener, app, lambda level, words: None, 100, **tls))
        started[-1].start()
        return int(listener.getsockname()[1])

    yield serve
    for server in started:
        server.stop(timeout=0)


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would be printed with a traceback."""
    found: list[str] = []
    monkeypatch.setattr(gevent.get_hub(), "handle_error", lambda where, kind, error, trace: found.append(repr(error)))
    return found


def echo(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
    body = environ["wsgi.input"].read()
    said = b"%s %s %s" % (environ["PATH_INFO"].encode(), environ["HTTP_HOST"].encode(), body)
    start("200 OK", [("Content-Length", str(len(said)))])
    return [said]


def connected(port: int) -> Any:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.settimeout(10)
    return sock


def rest(sock: Any) -> bytes:
    """All until the server ends the connection."""
    found = b""
    while piece := sock.recv(65536):
        found += piece
    return found


def bodies(answer: bytes) -> list[bytes]:
    return [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200 OK")[1:]]


def test_requests_of_one_connection_are_answered_one_after_the_other(serve: Serve) -> None:
    sock = connected(serve(echo))
    sock.sendall(b"GET /a HTTP/1.1\r\n" + HOST + b"\r\nPOST /b HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nhi")
    sock.sendall(b"GET http://other.example:80/c?q HTTP/1.1\r\n" + HOST + b"\r\n")
    sock.sendall(b"POST /d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HOST + b"\r\n1\r\nx\r\n0\r\n\r\n")
    sock.sendall(b"GET /e HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")
    assert bodies(rest(sock)) == [
        b"/a localhost ", b"/b localhost hi", b"/c other.example:80 ", b"/d localhost x", b"/e localhost ",
    ]  # fmt: skip


@pytest.mark.parametrize(("host", "loopback"), [("127.0.0.1", True), ("127.0.0.9", True), ("0.0.0.0", False)])
def test_an_application_is_told_whether_only_this_machine_reaches_it(serve: Serve, host: str, loopback: bool) -> None:
    seen: list[Any] = []

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        seen.append(environ[LOOPBACK])
        return echo(environ, start)

    with socket.create_connection((host, serve(app, host))) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")
        rest(sock)
    assert seen == [loopback]


@pytest.mark.parametrize("body", [
    pytest.param(b"x\r\n", id="no size"), pytest.param(b"3\r\nabcd", id="too long"),
    pytest.param(b"0\r\n" + b"A: x\r\n" * 101 + b"\r\n", id="too many trailers"),
])  # fmt: skip
@pytest.mark.parametrize("behind", [
    pytest.param(b"", id="nothing"), pytest.param(b"GET /next HTTP/1.1\r\n" + HOST + b"\r\n" + b"x" * 200_000, id="much"),
])  # fmt: skip
def test_what_is_no_body_is_refused_and_nothing_behind_it_is_taken(
    serve: Serve, errors: list[str], body: bytes, behind: bytes
) -> None:
    sock = connected(serve(echo))
    sock.sendall(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + body + behind)
    sock.shutdown(socket.SHUT_WR)
    assert rest(sock) == REFUSED
    assert errors == []


def test_who_goes_on_sending_behind_what_is_refused_is_read_for_a_second_and_then_cut(serve: Serve) -> None:
    sock = connected(serve(echo))
    sock.sendall(b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n")
    assert rest(sock) == REFUSED
    began = time.monotonic()
    with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
        while time.monotonic() < began + 5:
            sock.sendall(b"x")
            gevent.sleep(0.02)
    assert 0.8 < time.monotonic() - began < 4


def test_what_goes_wrong_in_the_application_is_an_error_of_ours(serve: Serve, errors: list[str]) -> None:
    def app(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        raise ZeroDivisionError

    sock = connected(serve(app))
    sock.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")
    assert rest(sock).startswith(b"HTTP/1.1 500 ")
    assert errors == ["ZeroDivisionError()"]


def test_a_client_that_goes_in_the_middle_is_no_error(serve: Serve, errors: list[str]) -> None:
    port = serve(echo)
    for sent in (b"", b"GET", b"GET / HTTP/1.1\r\nHo", b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhi"):
        sock = connected(port)
        sock.sendall(sent)
        sock.close()
    gevent.sleep(0.1)
    assert errors == []


def test_each_request_has_its_time_and_a_connection_without_one_is_ended(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "PATIENCE_SECONDS", 1.5)
    sock = connected(serve(echo))
    for _ in range(5):  # for longer than that, together
        gevent.sleep(0.4)
        sock.sendall(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert sock.recv(65536).endswith(b"/ localhost ")
    began = time.monotonic()
    assert rest(sock) == b""
    assert 1.0 < time.monotonic() - began < 10


def test_an_application_can_end_the_connection(serve: Serve) -> None:
    def app(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        environ[GIVE_UP]()
        environ[GIVE_UP]()  # no error, when it has gone
        return echo(environ, start)

    sock = connected(serve(app))
    sock.sendall(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhi")
    assert rest(sock) == b""


@pytest.fixture
def tls(authority: Authority) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's, and one of a client that trusts it."""
    pair = authority.sign("nsqd")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.cert, pair.key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    return server, client


def test_over_tls_it_serves_likewise_and_is_no_loopback_in_the_clear(
    serve: Serve, tls: tuple[ssl.SSLContext, ssl.SSLContext], errors: list[str]
) -> None:
    seen: list[Any] = []

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        seen.append((environ[LOOPBACK], environ["wsgi.url_scheme"]))
        return echo(environ, start)

    server, client = tls
    port = serve(app, ssl_context=server)
    sock = client.wrap_socket(connected(port))
    sock.sendall(b"GET /a HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")
    assert (bodies(rest(sock)), seen, errors) == ([b"/a localhost "], [(False, "https")], [])


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n"])
def test_who_does_not_shake_hands_is_dropped_without_an_error(
    serve: Serve, tls: tuple[ssl.SSLContext, ssl.SSLContext], errors: list[str], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(daemon, "HANDSHAKE_SECONDS", 0.3)
    sock = connected(serve(echo, ssl_context=tls[0]))
    sock.sendall(sent)
    began = time.monotonic()
    try:
        rest(sock)
    except ConnectionResetError:
        pass
    assert time.monotonic() - began < 5
    assert errors == []
