"""The server by itself: what it makes of a request, what it answers to one that fails or is odd, and where it listens."""

from __future__ import annotations

import _socket
import http.client
import logging
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.admin import address, client, pages, server, serving
from framework.admin.access import Access
from framework.admin.address import listen
from framework.admin.client import Worker
from framework.admin.pages import Pages
from framework.admin.requests import WORKER, Answer, Request, as_json, as_text
from framework.errors import BadSetting, BrokerUnreachable, WrongUse
from framework.settings import Settings
from framework.version import VERSION

Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves what a function answers at ``where``, and returns the address."""
    running: list[server.Server] = []

    def start(answer: Callable[[Request], Answer], where: str = "127.0.0.1:0") -> str:
        running.append(server.Server(listen(where), answer))
        return running[-1]._listener.address

    yield start
    for one in running:
        one.close()


def ask(where: str, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(where, timeout=20)
    connection.request(method, path, body, {"Connection": "close", **headers})
    answer = connection.getresponse()
    found = answer.read()
    connection.close()
    return answer, found


def test_a_request_comes_as_it_was_made(serve: Serve) -> None:
    came: list[Request] = []
    where = serve(lambda request: (came.append(request), as_text("ok"))[1])
    ask(where, "POST", "/a%20b?x=1&y=&z=a%2Fb", b"{}", **{"X-Some-Name": "value", "Content-Type": "application/json"})
    ask(where, "GET", "/")
    first, second = came
    assert (first.method, first.path, first.query, first.body) == ("POST", "/a b", {"x": "1", "z": "a/b"}, b"{}")
    assert (first.headers["x-some-name"], first.headers["content-type"]) == ("value", "application/json")
    assert (first.remote, first.headers["host"]) == ("127.0.0.1", where)
    assert (second.method, second.query, second.body, second.headers["content-type"]) == ("GET", {}, b"", "")


def test_an_answer_has_its_length_and_the_headers_of_all_and_its_own(serve: Serve) -> None:
    made = {
        "/text": as_text("no such thing", 404),
        "/own": Answer(200, "text/css", b"x", (("X-Own", "1"),)),
        "/pieces": Answer(200, "text/plain", iter([b"one, ", b"two"])),
    }
    where = serve(lambda request: made[request.path])
    answer, body = ask(where, "GET", "/text")
    assert (answer.status, answer.reason, body) == (404, "Not Found", b"no such thing\n")
    headers = dict(answer.headers)
    assert headers.items() >= {
        "Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
        WORKER: VERSION, "Content-Length": str(len(body)),
    }.items()  # fmt: skip
    answer, body = ask(where, "HEAD", "/text")
    assert (answer.status, answer.headers["Content-Length"], body) == (404, "14", b"")
    assert ask(where, "GET", "/own")[0].headers["X-Own"] == "1"
    answer, body = ask(where, "GET", "/pieces")
    assert (body, "Content-Length" in answer.headers) == (b"one, two", False)


def test_one_that_fails_is_an_answer_and_a_line_in_the_log_and_the_next_is_served(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(request: Request) -> Answer:
        if request.path == "/fails":
            raise ZeroDivisionError
        return as_text("ok")

    where = serve(fails)
    answer, body = ask(where, "GET", "/fails")
    assert (answer.status, answer.reason, body) == (500, "Internal Server Error", b"failed: the log says why\n")
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info is not None
    assert ask(where, "GET", "/")[0].status == 200


def test_a_body_that_ends_before_its_length_is_refused_and_longer_ones_are_not_read(serve: Serve) -> None:
    came: list[bytes] = []
    where = serve(lambda request: as_text(str(came.append(request.body))))
    host, _, port = where.rpartition(":")
    for size, body, status in ((10, b"abc", b"400 Bad Request"), (3, b"abc", b"200 OK"), (server.LARGEST + 1, b"", b"400 ")):
        with socket.create_connection((host, int(port)), 20) as asking:
            asking.sendall(b"POST /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (size, body))
            asking.shutdown(socket.SHUT_WR)
            answer = asking.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        assert answer.endswith(b"\r\n\r\nthe body is shorter than its Content-Length\n") is (size == 10)
    assert came == [b"abc"]


def test_many_requests_go_over_one_connection(serve: Serve) -> None:
    where = serve(lambda request: as_text(request.path))
    connection = http.client.HTTPConnection(where, timeout=20)
    for path in ("/a", "/b", "/c"):
        connection.request("GET", path)
        assert connection.getresponse().read() == f"{path}\n".encode()
    connection.close()


def test_between_two_requests_of_one_client_others_have_a_turn(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    breaths: list[float] = []
    sleep = server.gevent.sleep
    monkeypatch.setattr(server.gevent, "sleep", lambda seconds=0.0: (breaths.append(seconds), sleep(seconds))[1])
    connection = http.client.HTTPConnection(serve(lambda _: as_text("ok")), timeout=20)
    for _ in range(3):
        connection.request("GET", "/")
        connection.getresponse().read()
    connection.close()
    assert breaths[:2] == [server._BREATH] * 2


def test_one_that_cannot_begin_does_not_hold_up_who_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: server.Server) -> None:
        raise SystemExit  # which ends a thread without a word

    monkeypatch.setattr(server.Server, "_server", fails)
    made: list[server.Server] = []
    making = threading.Thread(
        target=lambda: made.append(server.Server(listen("127.0.0.1:0"), lambda _: as_text("ok"))), daemon=True
    )
    making.start()
    making.join(20)
    assert len(made) == 1
    made[0]._listener.close()


def test_its_end_is_not_waited_for_longer_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_END_SECONDS", 60.0)
    stop, stops = server.WSGIServer.stop, []
    monkeypatch.setattr(server.WSGIServer, "stop", lambda self, timeout: (stops.append(timeout), stop(self, timeout))[1])
    made = server.Server(listen("127.0.0.1:0"), lambda _: as_text("ok"))
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < 30
    assert stops == [0], "clients that still read are not waited for"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made._listener.fd)


@pytest.mark.parametrize(("address_", "serves"), [("127.0.0.1:0", True), ("0.0.0.0:0", False)])
def test_what_may_not_be_served_listens_no_longer(address_: str, serves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(sys.modules["framework.admin.serving"], "listen", lambda where: made.append(listen(where)) or made[-1])
    source: Any = SimpleNamespace(health=list, snapshot=None)
    if serves:
        with serving(Settings(admin=address_), source, list):
            assert ask(made[0].address, "GET", "/livez")[0].status == 200
    else:
        with pytest.raises(BadSetting, match="set a token"), serving(Settings(admin=address_), source, list):
            pytest.fail("it is served")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0].fd)


@pytest.mark.parametrize(
    ("soft", "most"), [(server.resource.RLIM_INFINITY, 100), (100_000, 100), (400, 100), (396, 99), (4, 1), (1, 1)]
)
def test_where_few_files_may_be_open_a_quarter_of_them_is_for_clients(
    soft: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: (soft, soft))
    assert server._most() == most


def test_the_oldest_client_makes_room_for_one_more(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CLIENTS", 2)
    where = serve(lambda _: as_text("ok"))
    clients = [http.client.HTTPConnection(where, timeout=20) for _ in range(3)]

    def answered(client: http.client.HTTPConnection) -> bytes:
        client.request("GET", "/")
        return client.getresponse().read()

    assert [answered(one) for one in clients] == [b"ok\n"] * 3
    assert clients[0].sock.recv(1) == b"", "it was given up"
    assert [answered(one) for one in clients[1:]] == [b"ok\n"] * 2
    for one in clients:
        one.close()


# --- where it listens --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "loopback", "shown"),
    [("127.0.0.1:0", True, "127.0.0.1:"), ("0.0.0.0:0", False, "0.0.0.0:"), ("localhost:0", True, "127.0.0.1:"),
     ("[::1]:0", True, "[::1]:"), ("[::]:0", False, "[::]:")],
)  # fmt: skip
def test_it_is_known_whether_others_can_reach_it(where: str, loopback: bool, shown: str) -> None:
    try:
        made = listen(where)
    except BadSetting:
        assert ":" in where.rpartition(":")[0], "this machine has no IPv6"
        return
    try:
        assert (made.loopback, made.path) == (loopback, "")
        assert made.address.startswith(shown)
        assert made.address.rpartition(":")[2] != "0"
    finally:
        made.close()


def test_of_several_addresses_of_a_name_the_first_is_listened_at(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (f"127.0.0.{number}", 0)) for number in (1, 2)]
    monkeypatch.setattr(address, "_socket", SimpleNamespace(**{**vars(_socket), "getaddrinfo": lambda *_, **__: found}))
    made = listen("some.name:0")
    made.close()
    assert made.address.startswith("127.0.0.1:")


def test_a_path_is_its_owner_s_alone_and_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "admin.sock")
    made = listen(path)
    assert (made.loopback, made.address, stat.S_IMODE(os.stat(path).st_mode)) == (True, path, 0o600)
    with pytest.raises(BadSetting, match="address already in use; give another port, or a path"):
        listen(path)
    made.close()
    made.close()
    assert not os.path.exists(path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadSetting, match="address already in use"):
        listen(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(BadSetting, match="no such file or directory"):
        listen(str(tmp_path / "no" / "admin.sock"))


def test_a_port_can_be_had_again_at_once() -> None:
    made = listen("127.0.0.1:0")
    client = socket.create_connection(("127.0.0.1", int(made.address.rpartition(":")[2])))
    taken = socket.socket(fileno=os.dup(made.fd)).accept()[0]
    taken.close()  # this end waits for the last of the connection
    made.close()
    again = listen(made.address)
    again.close()
    client.close()


def test_a_forked_child_lets_go_of_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[Any] = []
    let_go: list[int] = []
    monkeypatch.setattr(address, "forget_in_child", forgotten.append)
    monkeypatch.setattr(address, "let_go", let_go.append)
    made = listen("127.0.0.1:0")
    assert forgotten == [made]
    made.forget()
    assert let_go == [made.fd]
    made.close()


# --- who asks it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["port", "path"])
def test_a_client_says_the_token_and_gets_values_or_why_not(kind: str, serve: Serve, tmp_path: Path) -> None:
    came: list[Request] = []

    def answer(request: Request) -> Answer:
        came.append(request)
        status = {"/refused": 400, "/unknown": 401}.get(request.path, 200)
        return as_json({"error": "it cannot be done", "status": status}, status)

    where = serve(answer, "127.0.0.1:0" if kind == "port" else str(tmp_path / "a.sock"))
    worker = Worker(where, "a-token")
    assert worker.get("/api", handler="a/b")["status"] == 200
    assert worker.post("/act", {"action": "pause"})["status"] == 200
    first, second = came
    assert (first.query, first.headers["authorization"], first.headers["content-type"]) == (
        {"handler": "a/b"},
        "Bearer a-token",
        "",
    )
    assert (second.body, second.headers["content-type"]) == (b'{"action": "pause"}', "application/json")
    assert first.remote == ("127.0.0.1" if kind == "port" else "the local socket")
    with pytest.raises(WrongUse) as refused:
        worker.get("/refused")
    assert str(refused.value) == f"{where}: it cannot be done"
    with pytest.raises(WrongUse) as refused:
        Worker(where).get("/unknown")
    assert str(refused.value) == f"{where}: it cannot be done; set it in $WORKERS_ADMIN_TOKEN"
    assert "authorization" not in came[-1].headers


def test_a_client_takes_no_other_server_for_a_worker(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    where = serve(lambda _: as_json({}))
    monkeypatch.setattr(server, "WORKER", "Server-Of-Another-Kind")
    with pytest.raises(BrokerUnreachable, match=r"is no worker \(HTTP status 200\): is it another port\?"):
        Worker(where).get("/api")
    with pytest.raises(BrokerUnreachable, match=r"no worker answers at 127.0.0.1:1 \(Connection refused\)"):
        Worker("127.0.0.1:1").get("/api")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(111, "Connection refused"), "Connection refused"), (TimeoutError("timed out"), "timed out"),
        (http.client.BadStatusLine("x" * 300), "x" * 100), (http.client.HTTPException(), "HTTPException"),
        (ValueError("Expecting value"), "Expecting value"),
    ],
    ids=["refused", "late", "no HTTP", "no words", "no JSON"],
)  # fmt: skip
def test_why_no_worker_answers_is_said_in_few_words_and_the_connection_is_closed(
    error: Exception, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def fails(_: Any) -> None:
        raise error

    monkeypatch.setattr(client._Connection, "request", lambda *_: done.append("asked"))
    monkeypatch.setattr(client._Connection, "getresponse", fails)
    monkeypatch.setattr(client._Connection, "close", lambda _: done.append("closed"))
    with pytest.raises(BrokerUnreachable) as caught:
        Worker("127.0.0.1:1").get("/api")
    assert str(caught.value) == f"no worker answers at 127.0.0.1:1 ({why}): was it started with --admin?"
    assert done == ["asked", "closed"]


# --- which path is whose -----------------------------------------------------------------------------------


def test_of_strangers_so_many_are_remembered_and_no_more(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "STRANGERS", 3)
    source: Any = SimpleNamespace(health=list, snapshot=None)
    made = Pages(source, list, Access(local=True, token="a-token"))
    for number in range(5):
        for _ in range(2):
            assert made.answer(Request("GET", "/api", remote=f"10.0.0.{number}")).status == 401
    assert [record.getMessage().split()[1] for record in caplog.records] == [f"10.0.0.{number}" for number in range(3)]
    assert len(made._strangers) == 3


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/livez", 405, "text/plain"), ("GET", "/api/actions", 405, "application/json"),
        ("PUT", "/api/actions", 405, "application/json"), ("POST", "/api/actions", 415, "application/json"),
        ("POST", "/", 404, "text/plain"), ("GET", "/nowhere", 404, "text/plain"), ("HEAD", "/livez", 503, "text/plain"),
        ("GET", "/api/nowhere", 404, "application/json"), ("GET", "/scale", 400, "application/json"),
        ("GET", "/", 200, "text/html"),
    ],
)  # fmt: skip
def test_each_path_has_its_ways_and_refuses_in_its_form(method: str, path: str, status: int, kind: str) -> None:
    source: Any = SimpleNamespace(health=lambda: [{"stuck": ["it stands"], "unready": []}], snapshot=lambda _: {"handlers": []})
    made = Pages(source, list, Access(local=True)).answer(Request(method, path))
    assert (made.status, made.kind.partition(";")[0]) == (status, kind)
