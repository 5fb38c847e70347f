"""What a request takes of the memory for bodies, and that all of it is free again, however the request was answered."""

from __future__ import annotations

from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd.httpd import GIVE_UP
from framework.nsqd.status import Status
from framework.nsqd.underway import FREE_BYTES, Memory
from framework.nsqd.web import Api, Request

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
