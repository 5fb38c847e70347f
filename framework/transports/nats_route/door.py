"""Where other servers of the cluster dial us: a listening socket. What becomes of those who come, its owner decides."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import gevent
from gevent import socket as gsocket

from framework.errors import BadSetting
from framework.forked import forget_in_child, let_go
from framework.observe import hublog
from framework.transports.addresses import join_address, split_address

log = hublog.get(__name__)
_BACKLOG = 64
_PAUSE = 0.1
"""Seconds after which it is tried again to accept whoever dials."""


class Door:
    """At ``address`` (``host:port``; empty: nowhere). On one hub."""

    def __init__(self, address: str, admit: Callable[[Any, str], None]) -> None:
        """``admit(socket, address)``: in a greenlet of its own. Raises BadSetting."""
        self._admit = admit
        self._closed = False
        self._listener: Any = _listening(address) if address else None
        self._accepting: gevent.Greenlet | None = None
        forget_in_child(self)

    @property
    def address(self) -> tuple[str, int]:
        """Port 0: nowhere."""
        return self._listener.getsockname()[:2] if self._listener is not None else ("127.0.0.1", 0)

    def open(self) -> None:
        """Accept whoever dials, from now on."""
        if self._accepting is None and self._listener is not None and not self._closed:
            self._accepting = gevent.spawn(self._accept)

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                log.warning("no other server can dial us for a moment: %s", error)
                gevent.sleep(_PAUSE)
                continue
            gevent.spawn(self._admit, sock, join_address(*address[:2]))

    def close(self) -> None:
        self._closed = True
        if self._accepting is not None:
            self._accepting.kill(block=False)
        if self._listener is not None:
            self._listener.close()

    def forget(self) -> None:
        """In a forked child: the listener is the parent's."""
        if self._listener is not None:
            let_go(self._listener.fileno())


def _listening(address: str) -> Any:
    host, port = split_address(address)
    listener = gsocket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)  # create_server's is not gevent's
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise BadSetting(f"listen={address} in a broker URL: {error.strerror or error}; name another address or port") from None
    return listener
