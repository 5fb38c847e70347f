"""What a request by HTTP asks for and what it is answered; what it takes of the memory for bodies, all of which is free again."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd import web
from framework.nsqd.httpd import GIVE_UP
from framework.nsqd.status import Status
from framework.nsqd.underway import FREE_BYTES, Memory
from framework.nsqd.web import Api, Request, Response, names, plain

SIZE = 3 * FREE_BYTES


def take(request: Request) -> str:
    return str(len(request.body(SIZE)))


def refuse(request: Request) -> str:
    take(request)
    raise Status(400, "NO")


def fall(request: Request) -> str:
    take(request)
    raise ZeroDivisionError


@pytest.mark.parametrize(("path", "answer"), [("/take", b"%d" % SIZE), ("/refuse", b'{"message":"NO"}'), ("/fall", None)])
def test_what_a_body_took_is_free_again(path: str, answer: bytes | None) -> None:
    memory = Memory(SIZE)
    routes = {f"/{one.__name__}": {"POST": one} for one in (take, refuse, fall)}
    api = Api(routes, SimpleNamespace(check=lambda environ: None), memory)  # type: ignore[arg-type]
    environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "PATH_INFO": path, GIVE_UP: lambda: None}
    for _ in range(2):  # the second would wait for ever
        environ["wsgi.input"] = BytesIO(b"x" * SIZE)
        if answer is None:
            with pytest.raises(ZeroDivisionError):
                api(environ, lambda *_: None)
        else:
            assert api(environ, lambda *_: None) == [answer]
        assert memory._taken == 0


@pytest.mark.parametrize(("method", "code"), [("GET", 301), ("POST", 307)])
@pytest.mark.parametrize(("path", "query", "where"), [
    ("/Pub", "topic=t&a=%20", "/pub?topic=t&a=%20"), ("/pub/", "", "/pub"), ("/PUB//", "x", "/pub?x"),
])  # fmt: skip
def test_a_path_that_is_mistyped_is_told_as_it_is_and_the_body_is_sent_again(
    method: str, code: int, path: str, query: str, where: str
) -> None:
    api = Api({"/pub": {"GET": take, "POST": take}}, SimpleNamespace(), Memory(SIZE))  # type: ignore[arg-type]
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query, "wsgi.input": BytesIO()}
    answer = api.respond(Request(environ, SimpleNamespace()))  # type: ignore[arg-type]
    assert (answer.code, answer.answer, answer.headers) == (code, None, (("Location", where),))


class Taking:
    """A client's share of the memory for bodies, that notes what is told to it."""

    def __init__(self) -> None:
        self.told: list[int | str] = []

    def expect(self, size: int) -> None:
        self.told.append(size)

    def received(self) -> None:
        self.told.append("received")


def request(path: str = "/pub", query: str = "", body: bytes = b"", method: str = "POST", **environ: Any) -> Request:
    said = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query, "wsgi.input": BytesIO(body), **environ}
    return Request(said, Taking())  # type: ignore[arg-type]


def refused(act: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(Status) as raised:
        act()
    return raised.value.code, raised.value.words


def test_a_request_is_told_as_it_came() -> None:
    one = request("/config/a", "x=1", CONTENT_LENGTH="7", **{"wsgi.url_scheme": "https"})
    assert (one.path, one.name, one.method, one.raw_query, one.length, one.secure) == ("/config/a", "a", "POST", "x=1", 7, True)
    bare = Request({"REQUEST_METHOD": "GET", "wsgi.input": BytesIO()}, Taking())  # type: ignore[arg-type]
    assert (bare.path, bare.name, bare.raw_query, bare.length, bare.secure) == ("", "", "", -1, False)
    assert (request(CONTENT_LENGTH="").length, request(CONTENT_LENGTH="0").length) == (-1, 0)


def test_the_first_value_of_a_parameter_counts() -> None:
    one = request(query="a=1&a=2&b=&c")
    assert (one.get("a"), one.get("b"), one.get("c"), one.get("d")) == ("1", "", "", None)
    assert (one.require("a"), one.require("b")) == ("1", "")
    assert refused(lambda: one.require("d")) == (400, "MISSING_ARG_D")
    assert refused(lambda: request(query="a=%zz").get("a")) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(("query", "refusal"), [
    ("channel=c", "MISSING_ARG_TOPIC"), ("topic=t", "MISSING_ARG_CHANNEL"), ("topic=%20&channel=c", "INVALID_ARG_TOPIC"),
    ("topic=t&channel=", "INVALID_ARG_CHANNEL"), ("topic=t&channel=c%20", "INVALID_ARG_CHANNEL"), ("", "MISSING_ARG_TOPIC"),
])  # fmt: skip
def test_a_request_must_name_a_topic_and_a_channel_that_can_be(query: str, refusal: str) -> None:
    assert refused(lambda: names(request(query=query))) == (400, refusal)
    assert names(request(query="channel=c&topic=t")) == ("t", "c")


@pytest.mark.parametrize(("size", "most", "read"), [
    (0, 10, 0), (9, 10, 9), (10, 10, 10), (11, 10, 11), (500, 10, 11), (70, 100, 70), (200, 100, 101),
])  # fmt: skip
def test_a_body_is_read_to_one_byte_beyond_what_it_may_have_and_said_of_before(
    monkeypatch: pytest.MonkeyPatch, size: int, most: int, read: int
) -> None:
    monkeypatch.setattr(web, "_PIECE_BYTES", 32)
    one = request(body=bytes(size))
    assert one.body(most) == bytes(read)
    pieces = [*range(32, read, 32), read] if read else []
    assert one._share.told == [*pieces, "received"]  # type: ignore[attr-defined]
    assert one._input.tell() == read


ROUTES: dict[str, Any] = {
    "/text": {"GET": lambda _: "words"}, "/json": {"GET": lambda _: {"a": 1}, "POST": lambda _: [2]},
    "/none": {"GET": lambda _: None}, "/config/": {"GET": lambda asked: f"of {asked.name}"},
    "/own": {"GET": lambda _: Response(200, "x", (("Content-Type", "text/css"),))},
    "/plain": {"GET": lambda _: plain(503, "NOK")},
}  # fmt: skip
JSON, TEXT, NSQ = (
    ("Content-Type", "application/json; charset=utf-8"), ("Content-Type", "text/plain; charset=utf-8"),
    ("X-NSQ-Content-Type", "nsq; version=1.0"),
)  # fmt: skip


def answered(method: str, path: str, check: Callable[[Any], None] = lambda environ: None) -> tuple[str, list[Any], bytes]:
    said: list[Any] = []
    api = Api(ROUTES, SimpleNamespace(check=check), Memory(SIZE))  # type: ignore[arg-type]
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "wsgi.input": BytesIO(), GIVE_UP: lambda: None}
    (body,) = api(environ, lambda status, headers: said.extend((status, headers)))
    assert said[1][-1] == ("Content-Length", str(len(body)))
    return said[0], said[1][:-1], body


@pytest.mark.parametrize(("method", "path", "status", "headers", "body"), [
    ("GET", "/text", "200 OK", [NSQ, TEXT], b"words"), ("GET", "/json", "200 OK", [NSQ, JSON], b'{"a":1}'),
    ("POST", "/json", "200 OK", [NSQ, JSON], b"[2]"), ("GET", "/none", "200 OK", [NSQ], b""),
    ("GET", "/config/a", "200 OK", [NSQ, TEXT], b"of a"), ("GET", "/own", "200 OK", [("Content-Type", "text/css")], b"x"),
    ("GET", "/plain", "503 Service Unavailable", [TEXT], b"NOK"),
    ("GET", "/nowhere", "404 Not Found", [NSQ, JSON], b'{"message":"NOT_FOUND"}'),
    ("GET", "/config/", "404 Not Found", [NSQ, JSON], b'{"message":"NOT_FOUND"}'),
    ("POST", "/Text", "404 Not Found", [NSQ, JSON], b'{"message":"NOT_FOUND"}'),
    ("POST", "/text", "405 Method Not Allowed", [("Allow", "GET, OPTIONS"), NSQ, JSON], b'{"message":"METHOD_NOT_ALLOWED"}'),
    ("OPTIONS", "/json", "200 OK", [("Allow", "GET, OPTIONS, POST")], b""),
    ("GET", "/Text/", "301 Moved Permanently", [("Location", "/text")], b""),
])  # fmt: skip
def test_an_answer_has_the_headers_of_its_kind(
    method: str, path: str, status: str, headers: list[tuple[str, str]], body: bytes
) -> None:
    assert answered(method, path) == (status, headers, body)


def test_who_comes_from_elsewhere_is_answered_nothing_else() -> None:
    def check(environ: dict[str, Any]) -> None:
        raise Status(403, "ELSEWHERE")

    assert answered("GET", "/text", check) == ("403 Forbidden", [NSQ, JSON], b'{"message":"ELSEWHERE"}')
