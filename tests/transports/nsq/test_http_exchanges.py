"""One exchange with the HTTP of a server: what is sent, how long is waited, and what is made of each answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent.event import Event

from framework.errors import BrokerError, BrokerUnreachable, ProtocolError
from framework.transports.nsq.http import Lookupd, Nsqd
from framework.transports.nsq.urls import Options
from tests.transports.nsq.lookups import http

pytestmark = pytest.mark.real
BAD, FORBIDDEN, MISSING = "400 Bad Request", "403 Forbidden", "404 Not Found"


@pytest.fixture
def told(listening: Callable[..., str]) -> Callable[..., tuple[str, list[bytes]]]:
    """``told(answer)`` -> the address of a server that answers everything so, and what it was sent."""

    def start(answer: bytes) -> tuple[str, list[bytes]]:
        seen: list[bytes] = []

        def serve(sock: Any) -> None:
            while data := sock.recv(65536):
                seen.append(data)
                if b"\r\n\r\n" in b"".join(seen):
                    sock.sendall(answer)

        return listening(serve), seen

    return start


Told = Callable[..., tuple[str, list[bytes]]]


# -- what is sent


def test_a_question_has_no_body_and_a_command_has_one(told: Told) -> None:
    address, seen = told(http(b"{}"))
    assert Nsqd(address).stats().topics is None
    assert seen[0].startswith(b"GET /stats?format=json&include_mem=false&include_clients=true HTTP/1.1\r\nHost: ")
    assert b"Content-Length" not in b"".join(seen)
    seen.clear()
    Nsqd(f"http://{address}").publish("orders", b"body")
    assert b"".join(seen).startswith(b"POST /pub?topic=orders HTTP/1.1\r\n")
    assert b"Content-Length: 4\r\n" in b"".join(seen)
    assert b"".join(seen).endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(("ask", "line"), [
    (lambda nsqd: nsqd.stats("t", "c", clients=False, memory=True),
     b"GET /stats?format=json&include_mem=true&include_clients=false&topic=t&channel=c "),
    (lambda nsqd: nsqd.stats("t"), b"GET /stats?format=json&include_mem=false&include_clients=true&topic=t "),
    (lambda nsqd: nsqd.ping(), b"GET /ping "), (lambda nsqd: nsqd.config("a b"), b"GET /config/a%20b "),
    (lambda nsqd: nsqd.delete_topic("t"), b"POST /topic/delete?topic=t "),
    (lambda nsqd: nsqd.create_channel("t", "c"), b"POST /channel/create?topic=t&channel=c "),
])  # fmt: skip
def test_what_is_asked_for_is_in_the_path(told: Told, ask: Callable[[Nsqd], object], line: bytes) -> None:
    address, seen = told(http(b"{}"))
    ask(Nsqd(address))
    assert seen[0].startswith(line)


@pytest.mark.parametrize(("value", "body"), [("debug", b"debug"), (["a:1", "b:2"], b'["a:1","b:2"]'), ((), b"[]")])
def test_what_an_nsqd_is_told_to_be_is_a_word_or_a_list(told: Told, value: Any, body: bytes) -> None:
    address, seen = told(http(b""))
    Nsqd(address).configure("option", value)
    assert b"".join(seen).startswith(b"PUT /config/option ")
    assert b"".join(seen).endswith(b"\r\n\r\n" + body)


# -- the clock


def test_the_clock_of_a_server_is_what_the_head_of_its_answer_says(fake_http: Callable[[bytes], str]) -> None:
    dated = b"HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:01:40 GMT\r\nContent-Length: 2\r\n\r\nOK"
    assert Nsqd(fake_http(dated)).clock() == 100.0
    with pytest.raises(ProtocolError, match="answered /ping with no date that can be read: ''"):
        Nsqd(fake_http(http(b"OK"))).clock()


# -- answers


@pytest.mark.parametrize(("status", "body", "code"), [
    (BAD, b'{"message":"INVALID_TOPIC"}', "INVALID_TOPIC"), (BAD, b'{"status_txt":"MISSING_ARG"}', "MISSING_ARG"),
    (BAD, b'{"message":"NEW","status_txt":"OLD"}', "NEW"), (BAD, b"{}", "HTTP_400"), (MISSING, b'{"message":""}', "HTTP_404"),
    (FORBIDDEN, b'{"message":"TLS_REQUIRED"}', "TLS_REQUIRED"), ("201 Created", b'{"message":"MORE"}', "MORE"),
])  # fmt: skip
def test_a_refusal_is_an_error_that_ends_nothing_with_the_servers_word(
    fake_http: Callable[[bytes], str], status: str, body: bytes, code: str
) -> None:
    address = fake_http(http(body, status))
    for options in (Options(), Options(tls=True)):
        with pytest.raises(BrokerError) as caught:
            Nsqd(address, options=options).ping()
        assert (caught.value.code, caught.value.fatal) == (code, False)
        assert f"(nsqd {address}, HTTP {status[:3]} to /ping)" in str(caught.value)


@pytest.mark.parametrize(("status", "tls"), [(BAD, True), (FORBIDDEN, False)])
def test_another_port_is_asked_only_where_https_is_demanded_and_allowed(
    fake_http: Callable[[bytes], str], told: Told, status: str, tls: bool
) -> None:
    other, seen = told(http(b"OK"))
    said = json.dumps({"message": "NO", "https_port": int(other.rpartition(":")[2])}).encode()
    with pytest.raises(BrokerError, match="NO"):
        Nsqd(fake_http(http(said, status)), options=Options(tls=tls)).ping()
    assert seen == []


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"\xff"])
def test_a_refusal_of_another_kind_of_server_is_a_protocol_error(fake_http: Callable[[bytes], str], body: bytes) -> None:
    with pytest.raises(ProtocolError, match="answered /ping with HTTP 400"):
        Nsqd(fake_http(http(body, BAD))).ping()


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..example"])
def test_a_name_that_is_none_cannot_be_reached(host: str) -> None:
    with pytest.raises(BrokerUnreachable, match="cannot be reached"):
        Nsqd(f"{host}:4151").ping()


# -- time


def test_the_time_of_whoever_asks_is_theirs(fake_http: Callable[[bytes | None], str]) -> None:
    with pytest.raises(gevent.Timeout) as caught, gevent.Timeout(0.02) as mine:
        Nsqd(fake_http(None), timeout=20.0).ping()
    assert caught.value is mine
    with pytest.raises(BrokerUnreachable, match=r"nsqd .* did not answer /ping within 0\.02 s"):
        Nsqd(fake_http(None), timeout=0.02).ping()


def test_the_connection_ends_with_the_answer(listening: Callable[..., str]) -> None:
    ended = Event()

    def serve(sock: Any) -> None:
        sock.recv(65536)
        sock.sendall(http(b"OK"))
        assert sock.recv(1) == b""
        ended.set()

    Nsqd(listening(serve)).ping()
    assert ended.wait(20)


# -- nsqlookupd


@pytest.mark.parametrize("code", ["TOPIC_NOT_FOUND", "INVALID_ARG_TOPIC"])
def test_an_nsqlookupd_that_knows_no_such_topic_knows_no_node_of_it(fake_http: Callable[[bytes], str], code: str) -> None:
    found = Lookupd(fake_http(http(json.dumps({"message": code}).encode(), MISSING))).lookup("orders")
    assert (found.producers, found.channels) == ([], [])


def test_any_other_refusal_of_an_nsqlookupd_is_one(fake_http: Callable[[bytes], str]) -> None:
    lookupd = Lookupd(fake_http(http(b'{"message":"INTERNAL_ERROR"}', "500 Oh")))
    with pytest.raises(BrokerError, match="INTERNAL_ERROR"):
        lookupd.lookup("orders")


@pytest.mark.parametrize(("ask", "error"), [
    (lambda api: api.lookup("orders"), ProtocolError), (lambda api: api.nodes(), ProtocolError),
    (lambda api: api.channels("orders"), BrokerError), (lambda api: api.create_topic("orders"), BrokerError),
])  # fmt: skip
def test_a_path_that_only_an_nsqlookupd_has_and_that_is_not_there_shows_that_it_is_none(
    fake_http: Callable[[bytes], str], ask: Callable[[Lookupd], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        ask(Lookupd(fake_http(http(b'{"message":"NOT_FOUND"}', MISSING))))


@pytest.mark.parametrize("path", ["lookup", "nodes"])
def test_what_is_no_json_is_shown_as_it_came(fake_http: Callable[[bytes], str], path: str) -> None:
    lookupd = Lookupd(fake_http(http(b"<html>", MISSING)))
    with pytest.raises(ProtocolError, match=f"answered /{path}.*<html>"):
        lookupd.lookup("orders") if path == "lookup" else lookupd.nodes()


def test_an_answer_of_nothing_is_as_good_as_an_empty_one(fake_http: Callable[[bytes], str]) -> None:
    lookupd = Lookupd(fake_http(http(b"{}")))
    assert (lookupd.nodes(), lookupd.topics(), lookupd.channels("orders"), lookupd.lookup("orders").producers) == ([], [], [], [])
