"""Server-sent events: a client hears what has changed, and one that never reads is dropped, which no handler notices."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
import pytest

from framework.admin import address, server
from framework.admin.feed import READERS, Feed
from framework.admin.requests import as_text
from framework.testing.servers import Server
from tests.admin.asking import SHOP, api, port_of, run


def listen(port: int) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/api/events")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
    return answer


def event(answer: Any) -> Any:
    line = answer.readline()
    assert line.startswith(b"data: ")
    assert answer.readline() == b"\n"
    return json.loads(line[6:])


@pytest.mark.real
def test_a_client_hears_of_all_handlers_and_then_of_those_that_change(nsqd: Server, tmp_path: Path) -> None:
    more = '\n    @handler("idle", "here")\n    def rest(message: Message): ...\n'
    with run(tmp_path, f"nsq://{nsqd.address}", shop=SHOP + more) as worker:
        port = port_of(worker)
        answer = listen(port)
        first = event(answer)
        assert sorted(row["handler"] for row in first["handlers"]) == ["idle/here", "orders/bill"]
        assert first["processes"][0]["state"] == "ready"
        nsqd.http("/mpub?topic=orders", b"wait\nbad")
        end = time.monotonic() + 20
        while not ((found := event(answer))["running"] and found["failures"]):
            assert time.monotonic() < end
        rows = [found["handlers"] for found in [event(answer) for _ in range(8)]]
        assert any("idle/here" not in [row["handler"] for row in some] for some in rows), "what does not change is not told again"
        assert [one["node"] for one in first["nodes"]] == [nsqd.address]
        answer.close()
        worker.process.kill()


class Growing:
    """Stands for ``Latest``: each time the state is another, and large."""

    def __init__(self) -> None:
        self.size = 0

    def __call__(self) -> Any:
        return {"at": 0.0, "processes": [], "running": [], "failures": [], "connections": []}

    def handlers(self) -> Any:
        self.size += 1
        return [{"handler": f"orders/{name}", "text": f"{self.size}" * 1_000_000} for name in range(5)]


def test_a_tab_that_never_reads_is_dropped_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.5)
    feed = Feed(Growing())  # type: ignore[arg-type]
    serving = server.Server(address.listen("127.0.0.1:0"), lambda _: feed.answer())
    port = int(serving._listener.address.rpartition(":")[2])
    deaf = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    for one in deaf:
        one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    try:
        soon(lambda: feed._readers == 3)
        assert event(listen(port))["handlers"]
        soon(lambda: feed._readers == 0)
    finally:
        serving.close()
        for one in deaf:
            one.close()


def test_clients_that_send_byte_by_byte_do_not_keep_others_out(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A probe that nobody answers ends the worker."""
    monkeypatch.setattr(server, "PATIENCE", 0.5)
    monkeypatch.setattr(server, "CLIENTS", 3)
    serving = server.Server(address.listen("127.0.0.1:0"), lambda _: as_text("ok"))
    port = int(serving._listener.address.rpartition(":")[2])
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    begun = (b"GET /livez", b"GET /livez HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n")
    for one, bytes_ in zip(slow, begun, strict=True):
        one.sendall(bytes_)
    ended = threading.Event()
    dripping = threading.Thread(target=_drip, args=(slow, ended))
    dripping.start()
    try:
        for _ in slow:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/livez", headers={"Connection": "close"})
            assert connection.getresponse().status == 200
    finally:
        ended.set()
        dripping.join()
        serving.close()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("length", ["Content-Length: 1000000000000", "Transfer-Encoding: chunked"])
def test_a_body_that_is_too_long_or_of_no_length_is_not_swallowed(length: str) -> None:
    serving = server.Server(address.listen("127.0.0.1:0"), lambda _: as_text("ok"))
    port = int(serving._listener.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(f"POST / HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 400 Bad Request")
        with pytest.raises(ConnectionError):
            while True:
                client.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
    serving.close()


def test_a_body_of_all_that_may_be_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LARGEST", 10)
    serving = server.Server(address.listen("127.0.0.1:0"), lambda request: as_text(f"{len(request.body)}"))
    port = int(serving._listener.address.rpartition(":")[2])
    try:
        for length, status in ((10, 200), (11, 400)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("POST", "/", b"x" * length, {"Connection": "close"})
            assert connection.getresponse().status == status
            connection.close()
    finally:
        serving.close()


def test_the_address_is_let_go_when_nobody_answers_there_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, stop, listener = [], server._Server.stop, address.listen("127.0.0.1:0")

    def late(self: Any, timeout: float | None = None) -> None:
        gevent.sleep(0.1)
        stop(self, timeout)
        seen.append("stopped")

    monkeypatch.setattr(server._Server, "stop", late)
    monkeypatch.setattr(type(listener), "close", lambda _: seen.append("let go"))
    server.Server(listener, lambda _: as_text("ok")).close()
    assert seen == ["stopped", "let go"]


def _drip(clients: list[socket.socket], ended: threading.Event) -> None:
    while not ended.wait(0.05):
        for one in clients:
            with suppress(OSError):
                one.sendall(b"a")


def soon(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_there_is_an_end_to_how_many_may_listen_and_room_for_others(tmp_path: Path) -> None:
    with run(tmp_path, "memory://odd") as worker:
        port = port_of(worker)
        answers = [listen(port) for _ in range(READERS)]
        assert all(event(answer)["handlers"] for answer in answers)
        assert api(port, "/api/events") == (503, {"error": f"{READERS} clients listen to events already"})
        assert api(port, "/api/handlers")[0] == 200
        for answer in answers:
            answer.close()
        assert worker.stop() == 0
    assert not any("Traceback" in line for line in worker.err)


def test_events_are_for_who_may_ask(tmp_path: Path) -> None:
    with run(tmp_path, "memory://odd", env={"WORKERS_ADMIN_TOKEN": "a-token-of-the-tests"}) as worker:
        assert api(port_of(worker), "/api/events")[0] == 401
        assert worker.stop() == 0
