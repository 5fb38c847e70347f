"""The body of a request, in chunks and whole: what is taken, to the byte, and what is refused. Without a server."""

from __future__ import annotations

import io
from typing import Any

import pytest
from gevent.pywsgi import Input

from framework.nsqd.httpbody import MAX_FIELDS, BadBody, Body
from framework.nsqd.slices import Slices

LONGEST = 8192
"""Of a line between chunks, with its end."""


class Wire(io.RawIOBase):
    """Gives so many bytes at a time."""

    def __init__(self, data: bytes, piece: int) -> None:
        self._data, self._piece = data, piece

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(self._piece, len(buffer))
        given, self._data = self._data[:count], self._data[count:]
        buffer[: len(given)] = given
        return len(given)


class Client:
    """Has sent these bytes; ``said``: what it was answered."""

    def __init__(self, data: bytes, *, piece: int = 1 << 20, length: int | None = None, continues: bool = False) -> None:
        self.stream, self.said = io.BufferedReader(Wire(data, piece)), b""
        self.body = Body(Input(self.stream, length, self if continues else None, length is None), Slices())

    def sendall(self, data: bytes) -> None:
        self.said += data


CHUNKS = b"3\r\nabc\r\n1A;name=value\r\nabcdefghijklmnopqrstuvwxyz\r\n01\r\n-\r\n0\r\nTrailer: x\r\nOther:\r\n\r\nGET"


@pytest.mark.parametrize("piece", [1, 2, 1000])
@pytest.mark.parametrize("length", [1, 3, 4, 100, None])
def test_chunks_are_read_to_their_end_and_what_is_behind_them_is_not(piece: int, length: int | None) -> None:
    client = Client(CHUNKS, piece=piece)
    found, reads = b"", 0
    while here := client.body.read(length):
        assert length is None or len(here) <= length
        found, reads = found + here, reads + 1
    assert (found, client.stream.read()) == (b"abcabcdefghijklmnopqrstuvwxyz-", b"GET")
    assert reads == (1 if length is None else -(-len(found) // length))


@pytest.mark.parametrize("sent", [
    b"", b"x\r\n", b"\r\n", b"3\nabc\r\n0\r\n\r\n", b"-1\r\n", b"+3\r\nabc\r\n0\r\n\r\n", b" 3\r\nabc\r\n0\r\n\r\n",
    b"3 \r\nabc\r\n0\r\n\r\n",
    b"0x3\r\nabc\r\n0\r\n\r\n", b"3", b"3\r\nab", b"3\r\nabc", b"3\r\nabcd\r\n0\r\n\r\n", b"3\r\nabc\n0\r\n\r\n", b"3\r\nabc\r\n",
    b"0\r\n", b"0\r\n\n", b"0\r\nno field\r\n\r\n", b"0\r\n: x\r\n\r\n", b"0\r\nA: \0\r\n\r\n", b"0\r\nA: x\n\r\n",
    b"0" * 17 + b"\r\n\r\n",
    b"3;\rabc\r\n", b"3\r\nabc\r\r\n0\r\n\r\n",
])  # fmt: skip
@pytest.mark.parametrize("piece", [1, 1000])
def test_what_are_no_chunks_is_refused_and_nothing_is_read_after_it(sent: bytes, piece: int) -> None:
    client = Client(sent, piece=piece)
    with pytest.raises(BadBody):
        client.body.read()
    left = client.stream.peek()
    client.body._discard()  # as gevent does behind an answer
    assert client.stream.peek() == left


def test_a_line_that_cannot_become_right_is_refused_before_its_end_has_come() -> None:
    client = Client(b"3\r\nabcX" + b"y" * 100_000, piece=10)
    with pytest.raises(BadBody, match="what is between its chunks is wrong"):
        client.body.read()
    assert len(client.stream.read()) > 99_900


@pytest.mark.parametrize("more", [0, 1])
def test_a_line_has_a_bound(more: int) -> None:
    extension = b";" + b"x" * (LONGEST - 4 + more)
    client = Client(b"1" + extension + b"\r\na\r\n0\r\n\r\n")
    if more:
        with pytest.raises(BadBody):
            client.body.read()
    else:
        assert client.body.read() == b"a"


@pytest.mark.parametrize("more", [0, 1])
def test_trailers_have_a_bound(more: int) -> None:
    client = Client(b"0\r\n" + b"A: x\r\n" * (MAX_FIELDS + more) + b"\r\nGET")
    if more:
        with pytest.raises(BadBody, match="too many trailers"):
            client.body.read()
    else:
        assert (client.body.read(), client.stream.read()) == (b"", b"GET")


@pytest.mark.parametrize(("data", "length"), [(b"1\r\na\r\n0\r\n\r\n", None), (b"a", 1)])
def test_a_client_that_waits_for_it_is_told_once_to_go_on(data: bytes, length: int | None) -> None:
    client = Client(data, length=length, continues=True)
    assert client.said == b""
    assert (client.body.read(1), client.body.read(1)) == (b"a", b"")
    assert client.said == b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize(("data", "length"), [
    pytest.param(CHUNKS, None, id="chunks"), pytest.param(b"a" * 50_000 + b"GET", 50_000, id="whole"),
])  # fmt: skip
def test_what_was_left_unread_is_read_before_the_next_request(data: bytes, length: int | None) -> None:
    client = Client(data, length=length)
    assert client.body.read(1) == b"a"
    client.body._discard()
    assert client.stream.read() == b"GET"


def test_a_body_that_ends_too_soon_is_not_read_again() -> None:
    client = Client(b"abc", length=5)
    with pytest.raises(OSError, match="unexpected end"):
        client.body.read()
    client.body._discard()


def test_others_run_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    breaths: list[int] = []
    client = Client(b"1\r\na\r\n" * 10 + b"0\r\n" + b"A: x\r\n" * 5 + b"\r\n")
    monkeypatch.setattr(client.body, "_slices", type("Noting", (), {"breathe": lambda _: breaths.append(1)})())
    client.body.read()
    assert len(breaths) == 1 + 10 * 2 + 1 + 6  # the call, each chunk's size and bytes, the last one, and lines of trailers
