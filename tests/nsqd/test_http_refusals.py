"""HTTP that no server may take: two lengths for one body, a head without end, pages of other sites (RFC 9112, DNS rebinding)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.nsqd.cross_site import CrossSite
from framework.nsqd.httpd import MAX_HEAD_BYTES
from framework.nsqd.status import Status
from framework.testing import servers
from framework.testing.servers import Server
from framework.transports.nsq.http import Nsqd

HOST = "Host: localhost\r\n"


def exchanged(port: int, data: bytes) -> bytes:
    """All that the server answers to those bytes, until it ends the connection or is done with what it has got."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.settimeout(20)
        answer = b""
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass  # behind the answer, or the test fails
        return answer


def answered(port: int, data: bytes) -> bytes:
    """The answer, while the client goes on waiting for it: it says no more, and does not close."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.settimeout(10)
        sock.sendall(data)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        return answer


def codes(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


@pytest.fixture(scope="module")
def lookupd() -> Iterator[Server]:
    with servers.running(servers.own_nsqlookupd()) as server:
        yield server


def post(head: str, body: str = "hello", path: str = "/pub?topic=strict") -> bytes:
    return f"POST {path} HTTP/1.1\r\n{head}\r\n{body}".encode()


REFUSED = {
    "two lengths": (post(f"{HOST}Content-Length: 5\r\nContent-Length: 6\r\n"), 400),
    "two lengths in one field": (post(f"{HOST}Content-Length: 5, 6\r\n"), 400),
    "a length with a sign": (post(f"{HOST}Content-Length: +5\r\n"), 400),
    "a length with an underscore": (post(f"{HOST}Content-Length: 0_5\r\n"), 400),
    "a length below zero": (post(f"{HOST}Content-Length: -5\r\n"), 400),
    "no length": (post(f"{HOST}Content-Length:\r\n"), 400),
    "a length beyond counting": (post(f"{HOST}Content-Length: {'9' * 5000}\r\n"), 400),
    "length and chunks": (post(f"{HOST}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"), 400),
    "chunks and length": (post(f"{HOST}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "5\r\nhello\r\n0\r\n\r\n"), 400),
    "chunks in HTTP/1.0": (b"POST /pub?topic=strict HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 400),
    "an unknown coding": (post(f"{HOST}Transfer-Encoding: gzip, chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"), 501),
    "two codings": (post(f"{HOST}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "5\r\nhello\r\n0\r\n\r\n"), 501),
    "a space before the colon": (post(f"{HOST}Content-Length : 5\r\n"), 400),
    "a folded field": (post(f"{HOST}X: a\r\n b\r\nContent-Length: 5\r\n"), 400),
    "a bare CR": (post(f"{HOST}X: a\rContent-Length: 9\r\nContent-Length: 5\r\n"), 400),
    "a NUL": (post(f"{HOST}X: a\0b\r\nContent-Length: 5\r\n"), 400),
    "a field without a name": (post(f"{HOST}: a\r\nContent-Length: 5\r\n"), 400),
    "no host": (post("Content-Length: 5\r\n"), 400),
    "two hosts": (post(f"{HOST}Host: other\r\nContent-Length: 5\r\n"), 400),
    "a host with a user before it": (post("Host: 127.0.0.1:80@evil.example\r\nContent-Length: 5\r\n"), 400),
    "a target with a user in it": (
        post(f"{HOST}Content-Length: 5\r\n", path="http://127.0.0.1:80@evil.example/pub?topic=strict"),
        400,
    ),
    "a target without a host": (post(f"{HOST}Content-Length: 5\r\n", path="http:///pub?topic=strict"), 400),
    "a head that was cut off": (f"GET /ping HTTP/1.1\r\n{HOST}X: a".encode(), 400),
    "5 MB of fields": (post(HOST + f"X: {'a' * 4000}\r\n" * 1300), 431),
    "a field of 5 MB": (post(HOST + f"X: {'a' * 5_000_000}\r\n"), 431),
    "5,000 fields": (post(HOST + "X: a\r\n" * 5000), 431),
}
CHUNKS = {
    "no size": "\r\nhello\r\n",
    "no size, and nothing more": "\r\n",
    "no trailer's name, and nothing more": "0\r\n ",
    "no size behind a good chunk": "5\r\nhello\r\n\r\n",
    "no size but an extension": ";a=b\r\nhello\r\n",
    "a size that is no number": "five\r\nhello\r\n",
    "a size with a sign": "+5\r\nhello\r\n",
    "a size with a space": "5 \r\nhello\r\n",
    "a size beyond counting": f"{'f' * 17}\r\n",
    "a size that ends with LF alone": "5\nhello\r\n",
    "a size that ends with CR alone": "5\rhello\r\n",
    "an extension without end": f"5;{'a' * 9000}",
    "a chunk that is longer than its size": "5\r\nhello, you\r\n",
    "a trailer that is no field": "5\r\nhello\r\n0\r\nno field\r\n",
    "a trailer without end": f"5\r\nhello\r\n0\r\nX: {'a' * 9000}",
    "5,000 trailers": "5\r\nhello\r\n0\r\n" + "X: a\r\n" * 5000 + "\r\n",
    "garbage": "\0\xff\x7f",
}
REFUSED |= {f"chunks: {way}": (post(f"{HOST}Transfer-Encoding: chunked\r\n", body), 400) for way, body in CHUNKS.items()}


@pytest.mark.parametrize("way", REFUSED)
def test_what_is_no_request_is_refused_and_nothing_of_it_is_done(shared: Server, way: str) -> None:
    data, code = REFUSED[way]
    assert codes(exchanged(shared.http_port, data)) == [code]
    stats = shared.http("/stats?format=json&topic=strict")
    assert [topic["message_count"] for topic in stats["topics"] or []] in ([], [0])
    assert not any("Traceback" in line for line in shared.log), shared.log[-30:]


@pytest.mark.parametrize("way", sorted(REFUSED.keys() - {"a head that was cut off"}))
def test_what_is_no_request_is_refused_at_once(shared: Server, way: str) -> None:
    """Not when the client gives up: it may wait for ever."""
    data, code = REFUSED[way]
    began = time.monotonic()
    assert codes(answered(shared.http_port, data)) == [code]
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("way", CHUNKS)
def test_a_request_that_was_answered_is_not_answered_again(shared: Server, way: str) -> None:
    """What is wrong with its body is seen behind the answer: a second one would be taken for the next request's."""
    data = post(f"{HOST}Transfer-Encoding: chunked\r\n", CHUNKS[way], "/nothing")
    assert codes(answered(shared.http_port, data)) == [404]


@pytest.mark.parametrize("way", ["two lengths", "length and chunks", "5 MB of fields", "no host"])
def test_nsqlookupd_refuses_it_likewise(lookupd: Server, way: str) -> None:
    data, code = REFUSED[way]
    assert codes(exchanged(lookupd.http_port, data.replace(b"/pub?", b"/topic/create?"))) == [code]
    assert lookupd.http("/topics") == {"topics": []}


def test_the_second_request_in_the_first_ones_body_is_not_seen(shared: Server) -> None:
    inner = f"POST /topic/create?topic=smuggled HTTP/1.1\r\n{HOST}\r\n"
    for head in (f"Content-Length: {len(inner)}\r\nContent-Length: 0\r\n", "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"):
        exchanged(shared.http_port, post(HOST + head, inner))
    assert "smuggled" not in [topic["topic_name"] for topic in shared.http("/stats?format=json")["topics"] or []]


@pytest.mark.parametrize(
    "data",
    [
        post(f"{HOST}Content-Length: 5\r\n", path="/pub?topic=taken"),
        post(f"{HOST}Content-Length: 5\r\nContent-Length: 5\r\n", path="/pub?topic=taken"),
        post(f"{HOST}transfer-encoding: Chunked\r\n", "5\r\nhello\r\n0\r\n\r\n", "/pub?topic=taken"),
        post(f"{HOST}X:a\r\nContent-Length:\t5 \r\n", path="/pub?topic=taken"),
        post(HOST + f"X: {'a' * (MAX_HEAD_BYTES - 200)}\r\nContent-Length: 5\r\n", path="/pub?topic=taken"),
        b"POST /pub?topic=taken HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /pub?topic=taken HTTP/1.1\nHost: localhost\nContent-Length: 5\n\nhello",
        post(f"{HOST}Content-Length: 5\r\n", path="http://localhost/pub?topic=taken"),
        post(f"{HOST}Content-Length: 5\r\n", path="HTTPS://localhost:4151/pub?topic=taken"),
    ],
)
def test_what_is_a_request_is_taken(shared: Server, data: bytes) -> None:
    assert exchanged(shared.http_port, data).endswith(b"OK")


@pytest.mark.parametrize("field", ["Connection: upgrade", "Upgrade: websocket"])
def test_a_request_that_asks_for_an_upgrade_is_answered_without_one(shared: Server, field: str) -> None:
    data = post(f"{HOST}{field}\r\nContent-Length: 5\r\n", path="/pub?topic=upgraded")
    with socket.create_connection(("127.0.0.1", shared.http_port), 10) as sock:
        sock.sendall(data)
        assert codes(sock.recv(65536)) == [200]


# --- pages of other sites ---------------------------------------------------------------------------------------------


def test_a_page_cannot_publish_to_a_developers_loopback(shared: Server) -> None:
    page = "Origin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n"
    assert codes(exchanged(shared.http_port, post(f"Host: 127.0.0.1:{shared.http_port}\r\n{page}", path="/pub?topic=page"))) == [
        403
    ]
    rebound = f"Host: evil.example:{shared.http_port}\r\nOrigin: http://evil.example:{shared.http_port}\r\nContent-Length: 5\r\n"
    answer = exchanged(shared.http_port, post(f"{rebound}Sec-Fetch-Site: same-origin\r\n", path="/pub?topic=page"))
    assert (codes(answer), answer.endswith(b'{"message":"FORBIDDEN_HOST"}')) == ([403], True)
    assert codes(exchanged(shared.http_port, b"GET /stats HTTP/1.1\r\nHost: evil.example\r\n\r\n")) == [403]
    assert "page" not in [topic["topic_name"] for topic in shared.http("/stats?format=json")["topics"] or []]


@pytest.mark.parametrize("target", ["http://evil.example", "HTTP://evil.example:4151", "http://127.0.0.1.evil.example"])
def test_the_host_within_a_target_counts(shared: Server, target: str) -> None:
    data = post(f"Host: 127.0.0.1:{shared.http_port}\r\nContent-Length: 5\r\n", path=f"{target}/pub?topic=target")
    answer = exchanged(shared.http_port, data)
    assert (codes(answer), answer.endswith(b'{"message":"FORBIDDEN_HOST"}')) == ([403], True)
    named = post("Host: evil.example\r\nContent-Length: 5\r\n", path="http://localhost/pub?topic=target")
    assert codes(exchanged(shared.http_port, named)) == [200]
    assert shared.http("/stats?format=json&topic=target")["topics"][0]["message_count"] == 1
    shared.http("/topic/delete?topic=target", b"")


def test_nor_delete_a_topic_at_an_nsqlookupd(lookupd: Server) -> None:
    lookupd.http("/topic/create?topic=kept", b"")
    page = f"{HOST}Origin: null\r\nContent-Length: 0\r\n"
    assert codes(exchanged(lookupd.http_port, post(page, "", "/topic/delete?topic=kept"))) == [403]
    assert lookupd.http("/topics") == {"topics": ["kept"]}
    lookupd.http("/topic/delete?topic=kept", b"")


def test_our_own_client_is_served(shared: Server) -> None:
    for host in ("127.0.0.1", "localhost"):
        client = Nsqd(f"{host}:{shared.http_port}")
        client.ping()
        client.create_topic("own")


def test_a_name_that_is_allowed_is_served(tmp_path: Path) -> None:
    with servers.running(servers.own_nsqd(tmp_path, "--http-allow-host=queue.example")) as server:
        for host, code in (("queue.example", 200), ("queue.example:80", 200), ("evil.example", 403)):
            assert codes(exchanged(server.http_port, f"GET /ping HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())) == [code]


def test_on_an_address_that_others_reach_any_name_is_served(tmp_path: Path) -> None:
    server = servers.own_nsqd(tmp_path)
    server.command = [flag.replace("--http-address=127.0.0.1", "--http-address=0.0.0.0") for flag in server.command]
    with servers.running(server):
        assert codes(exchanged(server.http_port, b"GET /ping HTTP/1.1\r\nHost: queue.example\r\n\r\n")) == [200]
        page = "Host: queue.example\r\nOrigin: http://evil.example\r\nContent-Length: 5\r\n"
        assert codes(exchanged(server.http_port, post(page))) == [403]


def asked(method: str = "POST", *, loopback: bool = True, **headers: str) -> dict[str, object]:
    return {
        "REQUEST_METHOD": method,
        "nsqd.loopback": loopback,
        **{f"HTTP_{name.upper()}": value for name, value in headers.items()},
    }


SERVED = {
    "curl": asked(host="127.0.0.1:4151"),
    "curl on IPv6": asked(host="[::1]:4151"),
    "go-nsq, nsqadmin: the broadcast address": asked(host="Broadcast:4151"),
    "a tool that leaves the host out": asked(host=""),
    "Prometheus": asked("GET", host="localhost:4151"),
    "the machine's name": asked(host=socket.gethostname()),
    "a name that can only be local": asked(host="nsqd.localhost:4151"),
    "a name with a dot at its end": asked(host="localhost.:4151"),
    "its own page": asked(host="localhost:4151", origin="http://localhost:4151", sec_fetch_site="same-origin"),
    "its own page, in an old browser": asked(host="localhost:4151", origin="http://LOCALHOST:4151"),
    "what somebody typed": asked(host="localhost:4151", sec_fetch_site="none"),
    "an allowed page": asked(host="localhost:4151", origin="https://tools.example", sec_fetch_site="cross-site"),
    "a link from elsewhere": asked("GET", host="localhost:4151", sec_fetch_site="cross-site"),
    "another name, not on loopback": asked(host="queue.example", loopback=False),
}
NOT_SERVED = {
    "a name that was rebound": asked("GET", host="evil.example:4151"),
    "one that looks like an address": asked(host="127.0.0.1.evil.example:4151"),
    "one that looks local": asked(host="localhost.evil.example"),
    "another site": asked(host="localhost:4151", origin="http://evil.example", sec_fetch_site="cross-site"),
    "another port": asked(host="localhost:4151", origin="http://localhost:3000", sec_fetch_site="same-site"),
    "another site, in an old browser": asked(host="localhost:4151", origin="http://evil.example"),
    "a frame without an origin": asked(host="localhost:4151", origin="null"),
    "an origin that is none": asked(host="localhost:4151", origin="http://["),
    "another site, not on loopback": asked(host="queue.example", origin="http://evil.example", loopback=False),
    "a change of options": asked("PUT", host="localhost:4151", origin="http://evil.example"),
}


@pytest.mark.parametrize("who", SERVED)
def test_who_is_served(who: str) -> None:
    CrossSite(["tools.example"], "broadcast").check(SERVED[who])


@pytest.mark.parametrize("who", NOT_SERVED)
def test_who_is_not(who: str) -> None:
    with pytest.raises(Status, match="FORBIDDEN"):
        CrossSite(["tools.example"], "broadcast").check(NOT_SERVED[who])
    CrossSite(["*"], "broadcast").check(NOT_SERVED[who])
