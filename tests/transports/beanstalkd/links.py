"""A publishing link whose socket and clock the tests rule: what it takes, what its server answers, and when."""

from __future__ import annotations

import _socket
import socket
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
from tests.transports.ruled import Clock, Narrow, soon

USE = b"use orders\r\n"


def put(body: bytes = b"x", tube: str = "orders") -> Put:
    return tube, wire.put(body)


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


def told(asked: gevent.Greenlet) -> Sequence[Any]:
    """What the publisher that waits was told of each."""
    found: Sequence[Any] = asked.get(timeout=20)
    return found
