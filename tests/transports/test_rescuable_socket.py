"""A socket that several share: what is read in the hub's place comes first, and whatever fails ends it in words."""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection, Iterator
from time import monotonic

import gevent
import pytest

from framework.errors import BrokerUnreachable, FrameworkError, ProtocolError
from framework.message import Message
from framework.transports.rescuable_socket import RescuableSocket


class Lines(RescuableSocket[str]):
    """Reads lines; answers ``ask`` in the hub's place."""

    words = "the connection to test server"

    def __init__(self, sock: socket.socket) -> None:
        super().__init__("here", sock, _lines)
        self.notes: list[str] = []
        self.ends: list[FrameworkError] = []
        self._start_reading()

    def _take(self, events: list[str], at: float) -> None:
        if "fault" in events:
            raise KeyError("of this library")
        self.notes += events

    def _sift(self, events: list[str], now: float) -> list[str]:
        return [event for event in events if event != "ask"]

    def _keep(self, now: float, expired: Collection[Message]) -> None:
        self._sock.send(memoryview(b"kept\n"))

    def _resumed(self) -> None:
        self.notes.append("resumed")

    def _ended(self, error: FrameworkError) -> None:
        self.ends.append(error)


def _lines(data: bytes) -> list[str]:
    if b"garbage" in data:
        raise ProtocolError("garbage")
    return data.decode().splitlines()


@pytest.fixture
def pair() -> Iterator[tuple[Lines, socket.socket]]:
    mine, peer = socket.socketpair()
    mine.setblocking(False)
    shared = Lines(mine)
    yield shared, peer
    shared.end(BrokerUnreachable("the test is over"))
    peer.close()


def rescued_by_a_thread(shared: Lines) -> None:
    """While this thread stands here, the hub does."""
    thread = threading.Thread(target=lambda: shared.rescue(monotonic(), ()))
    thread.start()
    thread.join()


def test_what_was_read_in_the_hubs_place_comes_before_what_came_since(pair: tuple[Lines, socket.socket]) -> None:
    shared, peer = pair
    peer.sendall(b"first\nask\n")
    rescued_by_a_thread(shared)
    assert peer.recv(100) == b"kept\n"
    peer.sendall(b"second\n")
    rescued_by_a_thread(shared)
    peer.sendall(b"third\n")
    assert shared.notes == []  # the hub knows nothing of it yet
    gevent.sleep(0.01)
    assert shared.notes == ["resumed", "first", "second", "third"]
    shared.rescued()
    assert shared.notes.count("resumed") == 1


def test_garbage_read_in_the_hubs_place_ends_it_on_the_hub_behind_what_came_before(
    pair: tuple[Lines, socket.socket],
) -> None:
    shared, peer = pair
    peer.sendall(b"first\n")
    rescued_by_a_thread(shared)
    peer.sendall(b"garbage\n")
    rescued_by_a_thread(shared)
    assert shared.error is None
    shared.rescued()
    assert shared.notes == ["resumed", "first"]
    assert isinstance(shared.error, ProtocolError)
    assert shared.ends == [shared.error]


def test_a_fault_of_this_library_ends_it_with_a_logged_error(
    pair: tuple[Lines, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    shared, peer = pair
    peer.sendall(b"fault\n")
    gevent.sleep(0.01)
    assert isinstance(shared.error, BrokerUnreachable)
    assert "KeyError" in str(shared.error)
    assert "the connection to test server here" in caplog.text


def test_a_server_that_hangs_up_ends_it_once(pair: tuple[Lines, socket.socket]) -> None:
    shared, peer = pair
    peer.sendall(b"last\n")
    peer.close()
    gevent.sleep(0.01)
    shared.end(BrokerUnreachable("a second time"))
    assert shared.notes == ["last"]
    assert [str(one) for one in shared.ends] == ["the connection to test server here broke: the server closed it"]
