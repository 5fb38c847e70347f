"""Serves the admin pages from a native thread with a hub of its own, so that they answer while a handler blocks the worker's."""

from __future__ import annotations

import errno
import logging
import resource
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException
from socket import SHUT_RDWR
from typing import Any
from urllib.parse import parse_qsl

import gevent
import gevent.socket
from gevent import monkey
from gevent.event import Event
from gevent.pool import Pool
from gevent.pywsgi import WSGIHandler, WSGIServer

from framework.admin.address import Listener
from framework.admin.requests import WORKER, Answer, Request
from framework.version import VERSION

log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds for which a client may neither send nor read."""
CLIENTS = 100
"""Connections that are served at once. When one more comes, the oldest goes: of a hundred that stand still, and connect anew when
they are dropped, none keeps a probe out."""
_END_SECONDS = 1.0
_BREATH = 0.001
"""Seconds between two requests of a connection. With 0 the sockets of others would not be looked at."""
_PAUSE = 0.02
"""Seconds until the connection that was dropped is closed."""
LARGEST = 1_000_000
"""Bytes that a request may have."""
_REASONS = {status.value: status.phrase for status in HTTPStatus}

# Patched, they would be the worker's hub's.
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_start_new_thread = monkey.get_original("_thread", "start_new_thread")

Pages = Callable[[Request], Answer]


class Server:
    """``answer`` is called in the thread, ``close`` by whoever made it."""

    def __init__(self, listener: Listener, answer: Pages) -> None:
        self._listener = listener
        self._answer = answer
        self._loop: Any = None
        self._begun, self._ended = _allocate_lock(), _allocate_lock()
        self._begun.acquire()
        self._ended.acquire()
        _start_new_thread(self._run, ())
        self._begun.acquire()  # a moment: the socket listens already

    def close(self) -> None:
        """Returns when it is closed, or after a second."""
        self._loop.run_callback_threadsafe(self._stop.set)
        self._ended.acquire(timeout=_END_SECONDS)
        self._listener.close()

    def _run(self) -> None:
        hub = gevent.get_hub()
        self._loop, self._stop = hub.loop, Event()
        try:
            server = self._server()
            server.start()
            self._begun.release()
            self._stop.wait()
            server.stop(timeout=0)
        finally:
            if self._begun.locked():
                self._begun.release()
            self._ended.release()
            hub.destroy(destroy_loop=True)

    def _server(self) -> WSGIServer:
        sock = gevent.socket.socket(fileno=self._listener.fd)
        sock.setblocking(False)
        return _Server(
            sock, self._respond, log=None, error_log=_ToLog(), handler_class=_Handler, spawn=Pool(2 * CLIENTS),
            environ={"SERVER_NAME": "workers"},
        )  # fmt: skip

    def _respond(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            answer = self._answer(_request(environ))
        except _CutShort:
            answer = Answer(400, "text/plain", b"the body is shorter than its Content-Length\n")
        except Exception:
            log.exception("the admin endpoint failed, which is a bug")
            answer = Answer(500, "text/plain", b"failed: the log says why\n")
        headers = [("Content-Type", answer.kind), ("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store")]
        headers += [(WORKER, VERSION), *answer.headers]
        body = answer.body
        if isinstance(body, bytes):
            headers.append(("Content-Length", str(len(body))))
        start_response(f"{answer.status} {_REASONS[answer.status]}", headers)
        if environ["REQUEST_METHOD"] == "HEAD":
            return []
        return [body] if isinstance(body, bytes) else body


class _CutShort(Exception):
    """The client has stood still, or gone, before it had sent all that it was to send."""


def _request(environ: dict[str, Any]) -> Request:
    names = {name: name[5:].replace("_", "-").lower() for name in environ if name.startswith("HTTP_")}
    headers = {known: environ[name] for name, known in names.items()} | {"content-type": environ.get("CONTENT_TYPE") or ""}
    size = environ.get("CONTENT_LENGTH") or ""
    return Request(
        environ["REQUEST_METHOD"], environ["PATH_INFO"], dict(parse_qsl(environ.get("QUERY_STRING", ""))), headers,
        _body(environ["wsgi.input"], min(int(size), LARGEST)) if size.isdecimal() else b"",
        environ.get("REMOTE_ADDR") or "the local socket",
    )  # fmt: skip


def _body(stream: Any, size: int) -> bytes:
    try:
        with _in_time():
            return bytes(stream.read(size))
    except OSError:
        raise _CutShort from None


def _in_time() -> gevent.Timeout:
    """For all that a client sends, not for each byte: a hundred that send one a second would keep probes out for ever."""
    return gevent.Timeout(PATIENCE, TimeoutError("too slow"))


def _most() -> int:
    """Connections that are served at once; fewer, where the process may open few files: brokers and handlers need theirs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CLIENTS if soft == resource.RLIM_INFINITY else min(CLIENTS, max(1, soft // 4))


class _Server(WSGIServer):  # type: ignore[misc]
    """Where the process can open nothing more, the oldest connection makes room for the next; the log says so once."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.served: dict[_Handler, None] = {}
        self._said = False

    def do_read(self) -> Any:
        try:
            return super().do_read()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if not self._said:
                self._said = True
                log.warning("admin: a client has to wait, as this process can open no more files (ulimit -n); this is said once")
            self.drop_oldest()
            self.stop_accepting()
            gevent.spawn_later(_PAUSE, self._start_accepting_if_started)
            return None

    def drop_oldest(self) -> None:
        oldest = next(iter(self.served), None)
        if oldest is not None:
            del self.served[oldest]
            oldest.drop()


class _Handler(WSGIHandler):  # type: ignore[misc]
    """Gives up clients that stand still, and those that take for ever to ask."""

    def handle(self) -> None:
        self._answered = False
        self.socket.settimeout(PATIENCE)
        self.server.served[self] = None
        if len(self.server.served) > _most():
            self.server.drop_oldest()
        try:
            super().handle()
        finally:
            self.server.served.pop(self, None)

    def drop(self) -> None:
        """Whatever it waits for; it ends by itself then."""
        with suppress(OSError):
            self.socket.shutdown(SHUT_RDWR)

    def handle_one_request(self) -> Any:
        if self._answered:  # who has sent hundreds at once must not hold up others
            gevent.sleep(_BREATH)
        self._answered = True
        return super().handle_one_request()

    def read_requestline(self) -> Any:
        with _in_time():
            return super().read_requestline()

    def read_request(self, raw_requestline: Any) -> Any:
        try:
            with _in_time():
                valid = super().read_request(raw_requestline)
        except (OSError, HTTPException) as error:
            raise ValueError(str(error)) from None  # of any other, pywsgi prints a traceback, and waits for who reads stderr
        said = self.content_length
        if (said is not None and said > LARGEST) or "Transfer-Encoding" in self.headers:  # pywsgi would read it to its end
            raise ValueError("the body is too long, or of no length that is said")
        return valid


class _ToLog:
    """What pywsgi has to say about clients is for nobody but who debugs."""

    def write(self, text: str) -> None:
        log.debug("%s", text.rstrip("\n"))

    def flush(self) -> None: ...
