"""The HTTP server under the daemons' APIs: gevent's, stricter about what a request is (RFC 9112) and what a client may take.

It knows no route; what a request asks for is the application's.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable
from contextlib import closing, suppress
from io import BytesIO
from typing import Any

import gevent
from gevent import socket
from gevent.pywsgi import WSGIHandler, WSGIServer, headers_factory

from framework.alarm import Alarm
from framework.nsqd import daemon
from framework.nsqd.httpbody import MAX_FIELDS, TOKEN, BadBody, Body
from framework.nsqd.listening import Capped
from framework.nsqd.slices import Slices

MAX_HEAD_BYTES = 64 << 10
LOOPBACK = "nsqd.loopback"
"""In the environ: whether only this machine can reach the listener, in clear."""
GIVE_UP = "nsqd.give_up"
"""In the environ: ends the connection, without blocking."""
_READ_OUT_SECONDS = 1.0
_READ_OUT_BYTES = 8 << 20
_FIELD = re.compile(rb"(%b):[ \t]*([^\x00\r\n]*?)[ \t]*\r?\n" % TOKEN)
_ABSOLUTE = re.compile(r"^https?://([^/?#]*)/?", re.IGNORECASE)
"""The beginning of a target as a proxy gets it, which servers must take: its host counts, not the field's (RFC 9112, 3.2.2)."""
_HOST = re.compile(rb"[]!$%&'()*+,;=:.[_~0-9A-Za-z-]*")
"""As Go's: with no user before the name, who could look like an address."""
_LENGTH = re.compile(rb"[0-9]{1,18}")


class _Refused(ValueError):
    """A request that is none: the code and the reason that the client is told."""


_BAD = "400 Bad Request"
_TOO_LARGE = "431 Request Header Fields Too Large"
_UNKNOWN_CODING = "501 Not Implemented"


class _Handler(WSGIHandler):  # type: ignore[misc]
    """gevent's, which waits for ever: for a head that comes byte by byte, a body that does not, a client that does not read."""

    path: str

    def handle(self) -> None:
        self._slices = Slices()
        try:
            super().handle()
        except OSError:
            pass  # it left before it had its refusal

    def handle_one_request(self) -> Any:
        self._slices.breathe()  # a client that has sent many requests must not hold up others
        alarm = Alarm(self._give_up)
        alarm.set(time.monotonic() + daemon.PATIENCE_SECONDS)
        try:
            return super().handle_one_request()
        finally:
            alarm.cancel()

    def MessageClass(self, *_: Any) -> Any:  # noqa: N802 - gevent's hook for the head behind the request line
        lines = _lines(self.rfile)
        _check(lines, self.request_version, _ABSOLUTE.match(self.path))
        return headers_factory(BytesIO(b"".join([*lines, b"\r\n"])))

    def get_environ(self) -> Any:
        absolute = _ABSOLUTE.match(self.path)
        self.path = _ABSOLUTE.sub("/", self.path)
        environ = super().get_environ()
        if absolute is not None:
            environ["HTTP_HOST"] = absolute[1]
        self.wsgi_input: Body = Body(self.wsgi_input, self._slices)
        # Also where an upgrade is asked for, which nobody here grants: gevent would hand out the connection itself.
        return {**environ, "wsgi.input": self.wsgi_input, GIVE_UP: self._give_up}

    def _give_up(self) -> None:
        with suppress(OSError):  # it has gone
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # not TLS's own, which a reader would stumble over

    def _handle_client_error(self, error: Exception) -> None:
        """gevent's hook for what is wrong with a request. The answer must not be overtaken by a reset for what was not read."""
        if not self.response_length:  # else it was answered without its body, and this would be taken for the next one's answer
            status = str(error) if isinstance(error, _Refused) else _BAD
            self.socket.sendall(b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % status.encode())
        with suppress(OSError), gevent.Timeout(_READ_OUT_SECONDS, False):
            self.socket.shutdown(socket.SHUT_WR)
            read = 0
            while read < _READ_OUT_BYTES and (data := self.socket.recv(1 << 16)):
                read += len(data)

    def handle_error(self, kind: Any, error: Any, trace: Any) -> None:
        """What a client does to its connection is no error of ours, and deserves no traceback."""
        while trace.tb_next is not None:
            trace = trace.tb_next
        if isinstance(error, (OSError, BadBody)) or trace.tb_frame.f_globals["__name__"] == "gevent.pywsgi":  # not readable
            self.close_connection = True
            self._handle_client_error(error)
        else:
            super().handle_error(kind, error, error.__traceback__)


def _lines(stream: Any) -> list[bytes]:
    """The field lines of a head. Raises _Refused."""
    lines, size = list[bytes](), 0
    while True:
        line = stream.readline(MAX_HEAD_BYTES - size + 1)
        size += len(line)
        if size > MAX_HEAD_BYTES or len(lines) > MAX_FIELDS:
            raise _Refused(_TOO_LARGE)
        if line in (b"\r\n", b"\n"):
            return lines
        if not line.endswith(b"\n"):
            raise _Refused(_BAD)
        lines.append(line)


def _check(lines: list[bytes], version: str, absolute: re.Match[str] | None) -> None:
    """Two servers must not see two requests in one, nor another host (RFC 9112, 3.2, 5 and 6). Raises _Refused."""
    fields = [_FIELD.fullmatch(line) for line in lines]
    if None in fields:
        raise _Refused(_BAD)  # folded, with a space before its colon, or with a bare CR
    found: dict[bytes, list[bytes]] = {}
    for field in fields:
        assert field is not None
        found.setdefault(field[1].lower(), []).append(field[2])
    hosts = found.get(b"host", [])
    lengths, codings = found.get(b"content-length", []), found.get(b"transfer-encoding", [])
    if len(hosts) > 1 or (not hosts and version == "HTTP/1.1"):
        raise _Refused(_BAD)
    if absolute is not None:
        hosts = [*hosts, absolute[1].encode("latin-1")]
    if not all(map(_HOST.fullmatch, hosts)) or (absolute is not None and not absolute[1]):
        raise _Refused(_BAD)
    if len(set(lengths)) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise _Refused(_BAD)
    if codings and (lengths or version != "HTTP/1.1"):
        raise _Refused(_BAD)
    if codings and [one.lower() for one in codings] != [b"chunked"]:
        raise _Refused(_UNKNOWN_CODING)


class HttpServer(Capped, WSGIServer):  # type: ignore[misc]
    """gevent's, which writes head and body one by one: without TCP_NODELAY each answer waits 40 ms for a delayed ACK."""

    handler_class = _Handler

    def __init__(
        self, listener: socket.socket, application: Callable[..., Any], log: Callable[[str, str], None], most: int, **tls: Any
    ) -> None:
        """``most``: connections at a time."""
        environ = {LOOPBACK: not tls and _is_loopback(listener)}
        super().__init__(listener, application, log=None, error_log=None, environ=environ, **tls)
        self.cap(most, log, "HTTP")

    def wrap_socket_and_handle(self, sock: socket.socket, address: tuple[Any, ...]) -> None:
        """Over TLS. A client that does not shake hands is no error of ours, and gets no more time than on TCP."""
        try:
            with gevent.Timeout(daemon.HANDSHAKE_SECONDS, TimeoutError()):
                secured = self.wrap_socket(sock, **self.ssl_args)
        except OSError:
            return
        with closing(secured):
            self.handle(secured, address)

    def handle(self, sock: socket.socket, address: tuple[Any, ...]) -> None:
        daemon.send_at_once(sock)
        super().handle(sock, address)


def _is_loopback(listener: socket.socket) -> bool:
    """A path is not: no web page can name it."""
    return listener.family != socket.AF_UNIX and ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
