"""What the tests of every transport share: servers that do what the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from gevent import socket
from gevent.server import StreamServer


@pytest.fixture
def listening() -> Iterator[Callable[..., str]]:
    """``listening(script)``: the address of a server that does ``script(sock)`` with each connection, and closes it."""
    servers: list[StreamServer] = []

    def start(script: Callable[[socket.socket], object], **options: Any) -> str:
        def serve(sock: socket.socket, _address: object) -> None:
            with suppress(OSError):
                script(sock)

        servers.append(StreamServer(("127.0.0.1", 0), serve, **options))
        servers[-1].start()
        return f"127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.stop(0)
