"""Bytes from a client: when room for them is asked for, which of them go, and how the stream ends."""

from __future__ import annotations

import os
from typing import Any

import gevent
import pytest
from gevent import socket

from framework.errors import ProtocolError
from framework.nsqd.streams import MAX_LINE, EndOfStream, Incoming
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


@pytest.mark.parametrize("piece", [1, 2, 3, 100])
def test_lines_end_with_a_newline_and_may_be_empty(piece: int) -> None:
    data = b"\nab\r\n\r\n\ncd\n\r\r\nrest"
    client = Client(*[data[at : at + piece] for at in range(0, len(data), piece)], b"")
    assert [client.incoming.line() for _ in range(6)] == [b"", b"ab", b"", b"", b"cd", b"\r"]
    with pytest.raises(EndOfStream):
        client.incoming.line()


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_line_is_no_longer_than_nsqds_buffer(pieces: int) -> None:
    most = b"x" * (MAX_LINE - 1) + b"\n"
    client = Client(*([b"a\n" + most] if pieces == 1 else [b"a\n" + most[:-1], b"\n"]))
    assert [client.incoming.line() for _ in range(2)] == [b"a", most[:-1]]
    longer = b"x" * MAX_LINE
    for given in ([longer + b"\n"], [longer, b"\n"]):
        client = Client(b"a\n", *given)
        assert client.incoming.line() == b"a"
        with pytest.raises(EndOfStream, match="line too long"):
            client.incoming.line()


def test_numbers_and_bytes_are_taken_when_they_are_there() -> None:
    client = Client(b"\x00\x00", b"\x00\x07\xff\xff\xff\xffab", b"cdef", b"")
    assert (client.incoming.int32(), client.incoming.int32()) == (7, -1)
    assert (client.incoming.take(4), client.incoming.rest()) == (b"abcd", b"ef")
    with pytest.raises(EndOfStream):
        client.incoming.need(1)


def test_a_number_of_which_one_byte_is_still_to_come_is_waited_for() -> None:
    client = Client(b"\x00\x00\x01", b"\x02")
    assert client.incoming.int32() == 258


def test_a_line_that_is_as_long_as_the_buffer_is_refused_without_waiting_for_more() -> None:
    client = Client(b"x" * (MAX_LINE - 1), b"x")
    with pytest.raises(EndOfStream, match="line too long"):
        client.incoming.line()
    assert client.given == []


def test_through_a_layer_it_is_waited_for_what_comes_and_others_run_meanwhile() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    waits: list[int] = []

    class Layer:
        fileno = ours.fileno

        def recv(self, size: int) -> bytes:
            waits.append(size)
            return os.read(ours.fileno(), size)

    client = Client()
    client.incoming.through(Layer())  # type: ignore[arg-type]
    reading = gevent.spawn(client.incoming.take, 3)
    gevent.sleep(0.02)
    assert waits == [4096], "it reads again before there is something"
    theirs.send(b"abc")
    assert reading.get(timeout=10) == b"abc"
    assert waits == [4096] * 2
    ours.close()
    theirs.close()
