"""What the tests of the embedded nsqd share: it started as a process, and a client that speaks bytes."""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.nsqd.store import Store, compaction, store
from framework.testing import servers
from framework.testing.certificates import Authority
from framework.testing.servers import Server, own_nsqd
from tests import disks
from tests.conftest import missing
from tests.nsqd.layers import Servers
from tests.nsqd.storing import TOPIC, declared

MESSAGE = 2


def logged(server: Server, words: str, seconds: float = 20.0) -> bool:
    """Whether a line of its log has, or soon will have, these words: its lines are read by a thread."""
    deadline = time.monotonic() + seconds
    while not (found := any(words in line for line in server.log)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


@pytest.fixture
def start_embedded(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts embedded nsqds: ``start_embedded("--msg-timeout=2s")``."""
    started: list[Server] = []

    def start(*flags: str) -> Server:
        server = own_nsqd(tmp_path / f"embedded-{len(started)}", *flags)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def ours(start_embedded: Callable[..., Server]) -> Server:
    """One embedded nsqd with default flags."""
    return start_embedded()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One embedded nsqd for all tests of a file that neither end it nor look at topics of others."""
    with servers.running(own_nsqd(tmp_path_factory.mktemp("shared"))) as server:
        yield server


class Talk:
    """A client that sends what it is given and collects frames."""

    def __init__(self, address: tuple[str, int], hello: bytes = b"  V2") -> None:
        self.socket = socket.create_connection(address, 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        self.frames: list[tuple[int, bytes]] = []
        self.messages: list[tuple[bytes, int, bytes]] = []
        """(id, attempts, body) of every message so far."""
        self._buffer = b""
        self.send(hello)

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # closed by the server: what it said before is read all the same

    def read(self, seconds: float) -> bool:
        """Read once, for at most ``seconds``; whether anything came."""
        self.socket.settimeout(max(0.001, seconds))
        try:
            data = self.socket.recv(1 << 18)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return False
        self._buffer += data
        self._decode()
        return True

    def _decode(self) -> None:
        at = 0
        while len(self._buffer) - at >= 8:
            size, kind = struct.unpack_from(">ii", self._buffer, at)
            if len(self._buffer) - at < 4 + size:
                break
            data = self._buffer[at + 8 : at + 4 + size]
            self.frames.append((kind, data))
            if kind == MESSAGE:
                self.messages.append((data[10:26], int.from_bytes(data[8:10], "big"), data[26:]))
            at += 4 + size
        self._buffer = self._buffer[at:]

    def until(self, done: Callable[[], bool], seconds: float = 10.0) -> bool:
        """Read until ``done()``, the end of the connection, or the deadline; returns ``done()``."""
        deadline = time.monotonic() + seconds
        while not done() and not self.closed and (left := deadline - time.monotonic()) > 0:
            self.read(left)
        return done()

    def forget(self) -> None:
        """Start counting anew."""
        self.frames.clear()
        self.messages.clear()

    @property
    def replies(self) -> list[bytes]:
        """Responses and errors so far, heartbeats left out."""
        return [data for kind, data in self.frames if kind != MESSAGE and data != b"_heartbeat_"]

    def get(self, count: int, seconds: float = 10.0) -> list[tuple[bytes, int, bytes]]:
        """Wait for ``count`` messages in all."""
        assert self.until(lambda: len(self.messages) >= count, seconds), (self.frames[-5:], self.closed)
        return self.messages

    def reply(self, count: int, seconds: float = 10.0) -> list[bytes]:
        """Wait for ``count`` replies in all."""
        assert self.until(lambda: len(self.replies) >= count, seconds), (self.frames[-5:], self.closed)
        return self.replies

    def close(self) -> None:
        self.socket.close()


@pytest.fixture(scope="session")
def faulty_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes disks fail."""
    try:
        return disks.library(tmp_path_factory.mktemp("disk"))
    except servers.ServerMissing as error:
        missing(str(error))
        raise


@pytest.fixture
def disk(faulty_disk: Path, tmp_path: Path) -> disks.Disk:
    """A disk with faults for one server: ``disk.under(own_nsqd(...))``."""
    return disks.Disk(faulty_disk, tmp_path / "faults")


@pytest.fixture
def talk() -> Iterator[Callable[..., Talk]]:
    """Connects to a server: ``talk(server)``."""
    open_: list[Talk] = []

    def connect(server: Server, hello: bytes = b"  V2", **options: Any) -> Talk:
        client = Talk(("127.0.0.1", server.tcp_port), hello)
        open_.append(client)
        return client

    yield connect
    for client in open_:
        client.close()


LIMITS = (
    "--deflate=false", "--snappy=false", "--max-msg-size=1000", "--max-body-size=5000", "--max-channel-consumers=2",
    "--msg-timeout=30s", "--output-buffer-timeout=25ms",
)  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """A real nsqd and ours, with the same small limits."""
    try:
        real = servers.real_nsqd(tmp_path_factory.mktemp("real"), *LIMITS)
    except servers.ServerMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    with servers.running(real), servers.running(own_nsqd(tmp_path_factory.mktemp("ours"), *LIMITS)) as own:
        yield real, own


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the store of a test is."""
    return tmp_path / "data"


@pytest.fixture
def opened(folder: Path) -> Iterator[Store]:
    """A store with one topic and one channel."""
    one = Store(folder)
    one.append([declared(TOPIC, "c")])
    yield one
    one.close()


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments end after two kilobytes, and are tidied at once."""
    monkeypatch.setattr(store, "SEGMENT_BYTES", 2000)
    monkeypatch.setattr(store, "_ROLL_BYTES", 500)
    monkeypatch.setattr(store, "_EXAMINE_SECONDS", math.inf)  # else how far one sweep gets depends on the machine
    monkeypatch.setattr(compaction, "_SHARE", 0)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs certificates that the servers of a file trust."""
    try:
        return Authority(tmp_path_factory.mktemp("ca"))
    except servers.ServerMissing as error:
        missing(error)
        raise


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Servers]:
    """Starts a real nsqd and ours with the same flags: ``start("--tls-required")``."""
    started: list[Server] = []
    pair = authority.sign("nsqd")

    def both(*flags: str, certificate: bool = True) -> tuple[Server, Server]:
        files = [f"--tls-cert={pair.cert}", f"--tls-key={pair.key}"] if certificate else []
        made = []
        for make in (servers.real_nsqd, servers.own_nsqd):
            https = f"--https-address=127.0.0.1:{servers.free_port()}"
            try:
                server = make(tmp_path_factory.mktemp("data"), https, *files, *flags)
            except servers.ServerMissing as error:
                missing(error)
                raise
            server.start()
            started.append(server)
            made.append(server)
        return made[0], made[1]

    yield both
    for server in started:
        server.kill()
