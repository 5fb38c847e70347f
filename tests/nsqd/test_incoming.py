"""Bytes from a client: when room for them is asked for, which of them go, and how the stream ends. Without a socket."""

from __future__ import annotations

from typing import Any

import pytest

from framework.errors import ProtocolError
from framework.nsqd.streams import EndOfStream, Incoming
from framework.nsqd.underway import FREE_BYTES


class Client:
    """A socket that gives what it is told, and the client's share of memory: both note what is asked of them."""

    def __init__(self, *given: bytes | Exception) -> None:
        self.given = list(given)
        self.said: list[Any] = []
        self.size = 0
        self.incoming = Incoming(self, lambda: self.said.append("blocks"), self)  # type: ignore[arg-type]

    def recv(self, _size: int) -> bytes:
        self.said.append("reads")
        found = self.given.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def expect(self, size: int) -> None:
        self.said.append(size)
        self.size = size if size > FREE_BYTES else 0

    def received(self) -> None:
        self.said.append("received")

    def end(self) -> None:
        self.said.append("ended")


def test_what_was_read_goes_when_more_comes() -> None:
    client = Client(b"abc", b"def")
    client.incoming.more()
    client.incoming.position = 2
    client.incoming.more()
    assert (bytes(client.incoming.buffer), client.incoming.position) == (b"cdef", 0)
    assert client.said == ["blocks", "reads"] * 2


def test_room_is_asked_for_before_more_of_a_long_body_comes_and_given_back_when_less_of_it_is_left() -> None:
    client = Client(b"x" * FREE_BYTES, b"x", b"y", b"z", b"z")
    for _ in range(3):
        client.incoming.more()
    assert client.said == ["blocks", "reads", "blocks", "reads", "blocks", FREE_BYTES + 1, "reads", "received"]
    client.said.clear()
    client.incoming.position = FREE_BYTES
    client.incoming.more()
    assert client.said == ["blocks", 2, "reads", "received"]
    client.said.clear()
    client.incoming.more()
    assert client.said == ["blocks", "reads"]


@pytest.mark.parametrize("last", [b"", OSError("reset"), ProtocolError("no TLS")])
def test_a_stream_ends_however_it_breaks(last: Any) -> None:
    with pytest.raises(EndOfStream):
        Client(last).incoming.more()


def test_nothing_is_held_of_a_client_that_is_gone() -> None:
    client = Client(b"abc", b"more")
    client.incoming.more()
    client.incoming.end()
    assert (bytes(client.incoming.buffer), client.said[-1]) == (b"", "ended")
    with pytest.raises(EndOfStream):
        client.incoming.more()
    assert client.given == [b"more"]
