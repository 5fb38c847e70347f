"""What one socket to a beanstalkd takes, a part of it, and how whoever has it hears of its end."""

from __future__ import annotations

import _socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from gevent import socket as gsocket

from framework.errors import BrokerUnreachable, ProtocolError
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.hub_socket import HubSocket
from tests.transports.ruled import Narrow, soon

FIRST, SECOND = b"delete 1\r\n", b"delete 22\r\n"


class Ends:
    """Ours, with all that it was told, and the server's."""

    def __init__(self) -> None:
        here, self.server = gsocket.socketpair()
        self.server.settimeout(20)
        bare = _socket.socket(fileno=here.detach())
        bare.setblocking(False)
        self.socket = Narrow(bare)
        self.taken: list[str] = []
        self.errors: list[Exception] = []
        self.wrong: Exception | None = None
        line: Any = SimpleNamespace(node="b:11300", decoder=wire.Decoder(), release=lambda: self.socket)
        self.ours = HubSocket(line, self._take, self.errors.append)

    def _take(self, replies: list[wire.Reply]) -> None:
        if self.wrong is not None:
            raise self.wrong
        self.taken += [reply.word for reply in replies]

    def read(self, expected: bytes) -> None:
        got = b""
        while len(got) < len(expected):
            got += self.server.recv(len(expected) - len(got))
        assert got == expected


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.ours.close()
    made.server.close()


@pytest.mark.parametrize(("room", "cut"), [
    (0, [b"delete 1", b"delete 22"]), (3, [b"delete 1", b"delete 22"]), (len(FIRST) - 1, [b"delete 1", b"delete 22"]),
    (len(FIRST), [b"delete 22"]), (len(FIRST) + 3, [b"delete 22"]), (len(FIRST + SECOND), []),
])  # fmt: skip
def test_the_commands_of_which_the_socket_did_not_take_all_are_known_and_sent_when_it_does(
    ends: Ends, room: int, cut: list[bytes]
) -> None:
    ends.socket.room = room
    ends.ours.send(FIRST, ["one"])
    ends.ours.send(SECOND, ["two", "three"])
    assert list(ends.ours.awaited) == ["one", "two", "three"]
    assert ends.ours.cut() == cut
    assert (ends.ours.unsent, ends.ours.sent) == (len(FIRST + SECOND) - room, room)
    ends.socket.room = 1 << 30
    ends.read(FIRST + SECOND)
    soon(lambda: ends.ours.sent == len(FIRST + SECOND))
    assert (ends.ours.unsent, ends.ours.cut()) == (0, [])


@pytest.mark.parametrize(("said", "error", "words"), [
    (b"", BrokerUnreachable, "the connection to beanstalkd b:11300 broke: the server closed it"),
    (b"\x00\xff what\r\n", ProtocolError, ""),
])  # fmt: skip
def test_its_end_is_told_once_with_the_reason(ends: Ends, said: bytes, error: type[Exception], words: str) -> None:
    ends.server.sendall(b"INSERTED 1\r\n")
    soon(lambda: ends.taken)
    ends.server.sendall(said)
    ends.server.shutdown(gsocket.SHUT_WR)
    soon(lambda: ends.errors)
    assert type(ends.errors[0]) is error
    assert words in str(ends.errors[0])
    ends.ours.poll()
    ends.ours.close()
    assert (len(ends.errors), ends.ours.open, ends.taken) == (1, False, ["INSERTED"])


def test_what_whoever_takes_replies_makes_of_them_ends_it_where_that_is_nothing(ends: Ends) -> None:
    ends.wrong = KeyError("a bug")
    ends.server.sendall(b"INSERTED 1\r\n")
    soon(lambda: ends.errors)
    assert ends.errors == [ends.wrong]


@pytest.mark.parametrize("doing", ["recv", "send"])
def test_an_error_of_the_socket_is_its_end(ends: Ends, monkeypatch: pytest.MonkeyPatch, doing: str) -> None:
    def broken(*_: object) -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    if doing == "send":
        ends.socket.room = 3
        ends.ours.send(FIRST)
    monkeypatch.setattr(ends.socket, doing, broken)
    if doing == "recv":
        ends.server.sendall(b"INSERTED 1\r\n")
    soon(lambda: ends.errors)
    assert "b:11300 broke: [Errno 104] Connection reset by peer" in str(ends.errors[0])


def test_closed_it_tells_nothing_more(ends: Ends) -> None:
    ends.server.sendall(b"INSERTED 1\r\n")
    ends.ours.close()
    ends.ours.poll()
    ends.ours.resume()
    ends.ours.rescue(lambda: [(1, None)])
    assert (ends.taken, ends.errors, ends.ours.open) == ([], [], False)


# -- in the hub's place


def test_what_was_read_in_the_hubs_place_comes_before_what_the_hub_reads(ends: Ends) -> None:
    ends.server.sendall(b"INSERTED 1\r\nBURIED 2\r\n")
    ends.ours.rescue(lambda: [(7, "answer")])
    assert (ends.taken, list(ends.ours.awaited)) == ([], ["answer"])
    ends.read(wire.touch(7))
    ends.server.sendall(b"TOUCHED\r\n")
    ends.ours.resume()
    assert ends.taken == ["INSERTED", "BURIED", "TOUCHED"]


def test_what_could_not_be_sent_before_goes_before_the_touches(ends: Ends) -> None:
    ends.socket.room = 3
    ends.ours.send(FIRST)
    ends.ours.rescue(lambda: [(7, None)])
    assert list(ends.ours.awaited) == []
    ends.socket.room = 1 << 30
    ends.ours.rescue(lambda: [(7, None)])
    ends.read(FIRST + wire.touch(7))
    assert list(ends.ours.awaited) == [None]


@pytest.mark.parametrize("said", [b"\x00\xff what\r\n", b""], ids=["nonsense", "the end"])
def test_an_end_that_is_met_in_the_hubs_place_is_the_hubs_to_tell(ends: Ends, said: bytes) -> None:
    ends.server.sendall(b"INSERTED 1\r\n" + said)
    ends.server.shutdown(gsocket.SHUT_WR)
    for _ in range(2):
        ends.ours.rescue(list)
    assert (ends.taken, ends.errors) == ([], [])
    ends.ours.resume()
    soon(lambda: ends.errors)
    assert isinstance(ends.errors[0], ProtocolError if said else BrokerUnreachable)


def test_an_error_in_the_hubs_place_is_found_by_the_hub(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(ends.socket, "recv", broken)
    ends.ours.rescue(list)
    assert ends.errors == []
    ends.ours.resume()
    assert isinstance(ends.errors[0], BrokerUnreachable)
