"""The HTTP that NSQ's daemons share: routes, the query as Go reads it, and answers in NSQ's form. Source: internal/http_api."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from framework.names import is_valid
from framework.nsqd import golang
from framework.nsqd.cross_site import CrossSite
from framework.nsqd.httpd import GIVE_UP
from framework.nsqd.status import Status
from framework.nsqd.underway import Memory, Share

_JSON = ("Content-Type", "application/json; charset=utf-8")
_TEXT = ("Content-Type", "text/plain; charset=utf-8")
_API = ("X-NSQ-Content-Type", "nsq; version=1.0")
_REASONS = {
    200: "OK", 301: "Moved Permanently", 307: "Temporary Redirect", 400: "Bad Request", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 413: "Request Entity Too Large", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


_PIECE_BYTES = 64 << 10


class Request:
    """One request's query and body."""

    def __init__(self, environ: dict[str, Any], share: Share) -> None:
        self._share = share
        self.path: str = environ.get("PATH_INFO", "")
        self.method: str = environ["REQUEST_METHOD"]
        self.length = int(environ.get("CONTENT_LENGTH") or -1)
        self.secure = environ.get("wsgi.url_scheme") == "https"
        self.raw_query: str = environ.get("QUERY_STRING", "")
        self._input = environ["wsgi.input"]

    @property
    def name(self) -> str:
        """What a path such as /config/<name> ends with."""
        return self.path.rpartition("/")[2]

    @cached_property
    def query(self) -> dict[str, list[str]]:
        """Raises Status."""
        try:
            return golang.query(self.raw_query)
        except ValueError:
            raise Status(400, "INVALID_REQUEST") from None

    def get(self, name: str) -> str | None:
        """The first value of a parameter. Raises Status."""
        values = self.query.get(name)
        return values[0] if values else None

    def require(self, name: str) -> str:
        """The first value of a parameter that must be there. Raises Status."""
        value = self.get(name)
        if value is None:
            raise Status(400, f"MISSING_ARG_{name.upper()}")
        return value

    def body(self, most: int) -> bytes:
        """Up to ``most`` + 1 bytes of the body."""
        found = bytearray()
        while piece := self._input.read(min(_PIECE_BYTES, most + 1 - len(found))):
            found += piece
            self._share.expect(len(found))
        self._share.received()
        return bytes(found)


def names(request: Request) -> tuple[str, str]:
    """The topic and the channel that a request must name. Raises Status."""
    found = []
    for kind in ("topic", "channel"):
        name = request.require(kind)
        if not is_valid(name):
            raise Status(400, f"INVALID_ARG_{kind.upper()}")
        found.append(name)
    return found[0], found[1]


Answer = str | int | dict[str, Any] | list[Any] | None


class Response(NamedTuple):
    """An answer with a code or headers of its own."""

    code: int
    answer: Answer
    headers: tuple[tuple[str, str], ...] = (_API,)


def plain(code: int, words: str) -> Response:
    """Text without NSQ's header: what /ping says."""
    return Response(code, words, ())


Handler = Callable[[Request], Answer | Response]
Routes = Mapping[str, Mapping[str, Handler]]
"""Path -> method -> what answers it; a path that ends with / has a parameter behind it."""


class Api:
    """The WSGI application over a table of routes."""

    def __init__(self, routes: Routes, cross_site: CrossSite, memory: Memory) -> None:
        """``cross_site`` says which pages may use it; ``memory`` is what bodies take of it, those of other clients included."""
        self._routes = routes
        self._folded = {path.lower(): path for path in routes}
        self._cross_site = cross_site
        self._memory = memory

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        share = self._memory.share(environ[GIVE_UP])
        try:
            self._cross_site.check(environ)
            response = self.respond(Request(environ, share))
        except Status as status:
            response = Response(status.code, {"message": status.words})
        finally:
            share.end()
        headers = list(response.headers)
        if isinstance(response.answer, str):
            data = response.answer.encode()
            if all(name != "Content-Type" for name, _ in headers):
                headers.append(_TEXT)
        elif response.answer is None:
            data = b""
        else:
            data = msgspec.json.encode(response.answer)
            headers.append(_JSON)
        start_response(f"{response.code} {_REASONS[response.code]}", [*headers, ("Content-Length", str(len(data)))])
        return [data]

    def respond(self, request: Request) -> Response:
        """Raises Status."""
        handlers = self._routes.get(request.path) or self._routes.get(request.path.removesuffix(request.name))
        if handlers is None or not request.name:
            return self._redirect(request)
        allow = ("Allow", ", ".join(sorted([*handlers, "OPTIONS"])))
        if request.method == "OPTIONS":
            return Response(200, None, (allow,))
        if request.method not in handlers:
            return Response(405, {"message": "METHOD_NOT_ALLOWED"}, (allow, _API))
        answer = handlers[request.method](request)
        return answer if isinstance(answer, Response) else Response(200, answer)

    def _redirect(self, request: Request) -> Response:
        """nsqd's router mends a slash at the end and the case of letters."""
        path = self._folded.get(request.path.rstrip("/").lower())
        if path is None or request.method not in self._routes[path]:
            raise Status(404, "NOT_FOUND")
        query = f"?{request.raw_query}" if request.raw_query else ""
        return Response(301 if request.method == "GET" else 307, None, (("Location", path + query),))
