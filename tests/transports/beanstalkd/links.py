"""A publishing link whose socket and clock the tests rule: what it takes, what its server answers, and when."""

from __future__ import annotations

import _socket
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent import socket as gsocket

from framework.transports import looks
from framework.transports.beanstalkd import hub_socket, publish_link, wire
from framework.transports.beanstalkd.publish_link import PublishLink, Put
from framework.transports.looks import Looks

USE = b"use orders\r\n"


def put(body: bytes = b"x", tube: str = "orders") -> Put:
    return tube, wire.put(body)


class Clock:
    """Seconds, which pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Narrow:
    """A socket that takes ``room`` bytes and then no more; ``sends`` are those that it took."""

    def __init__(self, below: _socket.socket) -> None:
        self._below = below
        self.room = 1 << 30
        self.sends: list[bytes] = []
        self.reads = 0

    def send(self, data: Any) -> int:
        if not self.room:
            raise BlockingIOError
        taken = self._below.send(bytes(data)[: self.room])
        self.room -= taken
        self.sends.append(bytes(data)[:taken])
        return taken

    def recv(self, size: int) -> bytes:
        self.reads += 1
        return self._below.recv(size)

    def fileno(self) -> int:
        return self._below.fileno()

    def shutdown(self, how: int) -> None:
        self._below.shutdown(how)

    def close(self) -> None:
        self._below.close()


class Ends:
    """A link, the socket that it has, and its server, which the test plays."""

    def __init__(self, tick: float) -> None:
        ours, self.server = gsocket.socketpair()
        self.server.settimeout(20)
        self._file = self.server.makefile("rb")
        bare = _socket.socket(fileno=ours.detach())
        bare.setblocking(False)
        self.socket = Narrow(bare)
        line: Any = SimpleNamespace(node="b:11300", decoder=wire.Decoder(), release=lambda: self.socket)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(publish_link, "Looks", lambda _, *called: Looks(tick, *called))
            self.link = PublishLink(line)
        self.said = 0
        """How often the link said that its server is silent."""
        self.link.silent = self._silent

    def _silent(self) -> None:
        self.said += 1

    def ask(self, *puts: Put, seconds: float = 3600.0) -> gevent.Greenlet:
        """A publisher of all of these."""
        return gevent.spawn(self.link.ask_each, puts or [put()], seconds)

    def read(self, *expected: bytes) -> None:
        for each in expected:
            assert self._file.read(len(each)) == each

    def answer(self, *words: bytes) -> None:
        self.server.sendall(b"".join(word + b"\r\n" for word in words))

    def end(self) -> None:
        self.server.shutdown(socket.SHUT_WR)

    def look(self) -> None:
        """Return when the link has looked after its answers, twice at least. It does so for as long as it lives."""
        reads = self.socket.reads
        soon(lambda: self.socket.reads > reads + 4 or self.link.error)

    def close(self) -> None:
        self.link.close()
        self._file.close()
        self.server.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (publish_link, hub_socket, looks):
        monkeypatch.setattr(module, "monotonic", made)
    return made


@pytest.fixture
def make_ends(clock: Clock) -> Iterator[Callable[..., Ends]]:
    """``make_ends(tick)``: how often the link looks after itself, in real seconds; it does so all the time."""
    made: list[Ends] = []

    def make(tick: float = 0.001) -> Ends:
        made.append(Ends(tick))
        return made[-1]

    yield make
    for one in made:
        one.close()
    gevent.sleep(0)


@pytest.fixture
def ends(make_ends: Callable[..., Ends]) -> Ends:
    return make_ends()


def soon(condition: Callable[[], Any]) -> Any:
    """Turn the hub until ``condition`` holds; fails the test when it does not in time."""
    deadline = time.monotonic() + 20
    while not (value := condition()):
        assert time.monotonic() < deadline
        gevent.sleep(0.001)
    return value


def told(asked: gevent.Greenlet) -> Sequence[Any]:
    """What the publisher that waits was told of each."""
    found: Sequence[Any] = asked.get(timeout=20)
    return found
