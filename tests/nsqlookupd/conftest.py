"""What the tests of the embedded nsqlookupd share: it beside a real one, and an nsqd of bytes that registers."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from framework.testing import servers
from framework.testing.servers import Server


class Registrant:
    """A connection to an nsqlookupd."""

    def __init__(self, server: Server, hello: bytes = b"  V1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.tcp_port), 10)
        self.port = self.socket.getsockname()[1]
        self.send(hello)

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # ended by the server: what it said before is read all the same

    def reply(self) -> bytes | None:
        """The next response; None at the end of the connection."""
        head = self._exactly(4)
        return None if head is None else self._exactly(int.from_bytes(head, "big"))

    def ask(self, command: bytes) -> bytes | None:
        self.send(command)
        return self.reply()

    def identify(self, **fields: Any) -> None:
        peer = {"broadcast_address": "10.0.0.1", "hostname": "box", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}
        body = json.dumps(peer | fields).encode()
        answer = self.ask(b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        assert answer is not None
        assert json.loads(answer)["version"] == "1.3.0"

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                return None
            data += more
        return data

    def rest(self) -> list[bytes]:
        """All responses up to the end of the connection."""
        found = []
        while (data := self.reply()) is not None:
            found.append(data)
        return found

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def register() -> Iterator[Callable[..., Registrant]]:
    """Connects to an nsqlookupd: ``register(server)``."""
    open_: list[Registrant] = []

    def connect(server: Server, hello: bytes = b"  V1") -> Registrant:
        open_.append(Registrant(server, hello))
        return open_[-1]

    yield connect
    for one in open_:
        one.close()


@pytest.fixture
def start_own() -> Iterator[Callable[..., Server]]:
    """Starts our own nsqlookupds: ``start_own("--tombstone-lifetime=1s")``."""
    started: list[Server] = []

    def start(*flags: str) -> Server:
        server = servers.own_nsqlookupd(*flags)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    """A real nsqlookupd and ours."""
    try:
        real = servers.real_nsqlookupd()
    except servers.ServerMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    with servers.running(real), servers.running(servers.own_nsqlookupd()) as own:
        yield real, own
