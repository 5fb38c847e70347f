"""A publishing link between two ends of a pair of sockets, for tests that say what its socket takes and what its peer answers."""

from __future__ import annotations

import _socket
import socket
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gevent
import pytest
from gevent import socket as gsocket

from framework.transports.looks import Looks
from framework.transports.nsq import publish_link, wire
from framework.transports.nsq.delays import LongestDelays
from framework.transports.nsq.dial import Line
from framework.transports.nsq.publish_link import PublishLink
from framework.transports.stream import Stream
from tests.transports.ruled import Narrow, soon

NODE = "n:4150"
FOREVER = 3600.0


def command(body: bytes = b"x") -> bytes:
    return wire.pub("orders", body)


class Peer:
    """What the link is connected to."""

    def __init__(self, sock: gsocket.socket) -> None:
        sock.settimeout(20)
        self.sock = sock
        self._file = sock.makefile("rb")

    def respond(self, *answers: bytes) -> None:
        self.sock.sendall(b"".join(wire.encode_frame(wire.FRAME_RESPONSE, answer) for answer in answers))

    def refuse(self, words: bytes) -> None:
        self.sock.sendall(wire.encode_frame(wire.FRAME_ERROR, words))

    def read(self, expected: bytes) -> None:
        assert self._file.read(len(expected)) == expected

    def end(self) -> None:
        """Say no more."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._file.close()
        self.sock.close()


class Plain:
    """A layer that changes nothing; a chunk of it is begun as a whole, as a record of TLS is."""

    def encode(self, data: memoryview | bytes) -> bytes:
        return bytes(data)

    def decode(self, data: bytes) -> bytes:
        return data

    def farewell(self) -> bytes:
        return b""


class Pair(NamedTuple):
    """The link, the socket that it has, and its peer."""

    link: PublishLink
    socket: Narrow
    peer: Peer

    def ask(self, sent: bytes = command(), *, seconds: float = FOREVER) -> gevent.Greenlet:
        return gevent.spawn(self.link.ask, sent, publish_link.monotonic() + seconds)

    def look(self) -> None:
        """Return when the link has looked after its answers, twice at least. It does so for as long as it lives."""
        reads = self.socket.reads
        soon(lambda: self.socket.reads > reads + 2 or self.link.error)


def told(asked: gevent.Greenlet) -> Any:
    """What the publisher that waits was told."""
    return asked.get(timeout=20)


@pytest.fixture
def make_link(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Pair]]:
    """``make_link()`` -> a Pair. ``tick``: seconds of its looks; ``early``: what its peer has said before it was made; ``codec``:
    a layer between."""
    made: list[Pair] = []

    def make(
        *, tick: float = FOREVER, heartbeat: float = FOREVER, early: bytes = b"", codec: Any = None,
        delays: LongestDelays | None = None,
    ) -> Pair:  # fmt: skip
        monkeypatch.setattr(publish_link, "Looks", lambda _, *called: Looks(tick, *called))
        ours, theirs = gsocket.socketpair()
        bare = _socket.socket(fileno=ours.detach())
        bare.setblocking(False)
        narrow = Narrow(bare)
        line = Line(NODE, bare)
        line._stream = Stream(narrow, codec) if codec else narrow
        line._rest = early
        made.append(Pair(PublishLink(line, heartbeat, delays), narrow, Peer(theirs)))
        return made[-1]

    yield make
    for pair in made:
        pair.link.close()
        pair.peer.close()
    gevent.sleep(0)
