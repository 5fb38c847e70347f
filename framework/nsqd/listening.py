"""How many connections a daemon takes at a time, by the open files that it may have, and what it does when there are no more."""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gevent.server import StreamServer

if TYPE_CHECKING:
    from framework.nsqd.goflags import CommonOptions

_RESERVE = 24
"""Open files that connections leave to the storage, to nsqlookupds and to auth servers, besides those that are open at start."""
_LEAST = 4
_HTTP_SHARE = 4
"""A fourth of the connections are HTTP's, unless told otherwise."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_GONE = (errno.ECONNABORTED, errno.EPERM, errno.EPROTO)
"""The client left before it was accepted, or a firewall says no."""
_PAUSE_SECONDS = 0.5
_SAY_SECONDS = 60.0


def allowed(options: CommonOptions) -> tuple[int, int]:
    """The connections of TCP and of HTTP. What was asked for and cannot be had is among the options' warnings then."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    left = max(2 * _LEAST, files - len(os.listdir("/dev/fd")) - _RESERVE)
    http = options.max_http_connections or max(_LEAST, min(left // _HTTP_SHARE, left - options.max_tcp_connections))
    tcp = options.max_tcp_connections or max(_LEAST, left - http)
    if tcp + http > left:
        options.warnings.append(
            f"-max-tcp-connections={tcp} -max-http-connections={http}: there are open files for {left} only; "
            f"raise `ulimit -n`, which is {files}"
        )
    return tcp, http


class Capped:
    """For a gevent server: with so many connections it accepts no more until one ends; those that come wait in the kernel."""

    _most = 0
    _open = 0
    _said = -_SAY_SECONDS

    def cap(self, most: int, log: Callable[[str, str], None], name: str) -> None:
        self._most, self._log, self._name, self._flag = most, log, name, f"-max-{name.lower()}-connections"

    def full(self) -> bool:
        if self._open < self._most:
            return False
        self._say(f"{self._open} connections are open: others wait until one ends ({self._flag})")
        return True

    def do_handle(self, *arguments: Any) -> None:
        self._open += 1
        super().do_handle(*arguments)  # type: ignore[misc]

    def do_close(self, *arguments: Any) -> None:
        super().do_close(*arguments)  # type: ignore[misc]
        self._open -= 1
        self._start_accepting_if_started()  # type: ignore[attr-defined]

    def do_read(self) -> Any:
        """gevent writes a traceback for each accept that fails."""
        try:
            return super().do_read()  # type: ignore[misc]
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._say(f"cannot accept connections now: {error.strerror}; raise `ulimit -n`, or lower {self._flag}")
                self._pause()
            elif error.errno not in _GONE:
                raise
            return None

    def _pause(self) -> None:
        self.stop_accepting()  # type: ignore[attr-defined]
        self._timer = self.loop.timer(_PAUSE_SECONDS)  # type: ignore[attr-defined]
        self._timer.start(self._start_accepting_if_started)  # type: ignore[attr-defined]

    def _say(self, words: str) -> None:
        """Not with every connection."""
        if time.monotonic() - self._said >= _SAY_SECONDS:
            self._said = time.monotonic()
            self._log("WARNING", f"{self._name}: {words}")


class TcpServer(Capped, StreamServer):  # type: ignore[misc]
    """gevent's, for connections that are served by ``serve``."""

    def __init__(self, listener: Any, serve: Callable[..., None], log: Callable[[str, str], None], most: int) -> None:
        super().__init__(listener, serve)
        self.cap(most, log, "TCP")
