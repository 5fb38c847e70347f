"""What is to be sent to a client: joined, sent as far as it goes, and given up where nobody takes it."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from gevent import socket

from framework.nsqd import streams
from framework.nsqd.streams import Outgoing


class Line:
    """A way to a client that takes as much as it is told to."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.sent: list[bytes] = []
        self.takes: list[int | OSError] = []
        """At each send, how many bytes; behind these, all."""
        self.drained: list[bool] = []
        self.stuck = 0
        self.out = Outgoing(self.ours, lambda: self.drained.append(self.out.full), self._count)
        self.out.through(self)  # type: ignore[arg-type]

    def send(self, data: memoryview) -> int:
        most = self.takes.pop(0) if self.takes else len(data)
        if isinstance(most, OSError):
            raise most
        self.sent.append(bytes(data[:most]))
        return min(most, len(data))

    def _count(self) -> None:
        self.stuck += 1


def turn() -> None:
    gevent.sleep(0.005)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.out.close()
    made.ours.close()
    made.theirs.close()


def test_all_that_is_written_in_one_turn_is_sent_at_once(line: Line) -> None:
    line.out.write([b"a", b"bc"])
    line.out.write([b"d"])
    assert (line.sent, line.out.size) == ([], 4)
    turn()
    assert (line.sent, line.out.size) == ([b"abcd"], 0)
    line.out.write([b"e"])
    turn()
    assert line.sent == [b"abcd", b"e"]
    assert line.drained == [], "it was never full"


def test_a_turn_has_one_look_whatever_is_written_in_it(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(line.out, "flush", lambda: looks.append(1) or Outgoing.flush(line.out))
    for _ in range(2):
        for _ in range(3):
            line.out.write([b"a"])
        turn()
    assert (looks, line.sent) == ([1, 1], [b"aaa", b"aaa"])


def test_what_was_not_taken_is_sent_when_there_is_room_and_nothing_before_it(line: Line) -> None:
    line.takes = [2, BlockingIOError(), 1]
    line.out.write([b"abcd"])
    line.out.flush()
    assert (line.sent, line.out.size) == ([b"ab"], 2)
    line.out.write([b"ef"])
    line.out.flush()
    assert line.sent == [b"ab"], "it is waited for room"
    turn()
    assert (b"".join(line.sent), line.out.size) == (b"abcdef", 0)
    assert line.sent[1:] == [b"c", b"def"]


def test_a_client_is_full_above_the_mark_until_all_is_sent(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HIGH_WATER", 10)
    line.takes = [0, 9]
    line.out.between_layers = True
    line.out.write([b"x" * 10])
    assert not line.out.full
    line.out.write([b"y"])
    assert line.out.full
    waiting = gevent.spawn(line.out.wait)
    turn()
    assert not waiting.dead
    assert (line.sent, line.out.size) == ([], 11), "a layer is about to be put between"
    line.out.between_layers = False
    line.out.flush()
    turn()
    assert (line.drained, line.out.size, line.out.full) == ([False], 0, False)
    waiting.get(timeout=10)


@pytest.mark.parametrize("error", [OSError(errno.EPIPE, "Broken pipe"), ConnectionResetError()])
def test_a_connection_that_breaks_is_closed_and_nothing_more_is_held(line: Line, error: OSError) -> None:
    line.takes = [error]
    line.out.write([b"x"])
    turn()
    assert (line.out.closed, line.out.size, line.out.full) == (True, 0, False)
    line.out.write([b"y"])
    turn()
    assert (line.sent, line.out.size) == ([], 0)


def test_who_waits_goes_on_when_it_is_closed(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HIGH_WATER", 1)
    line.out.between_layers = True
    line.out.write([b"xy"])
    waiting = gevent.spawn(line.out.wait)
    turn()
    line.out.close()
    waiting.get(timeout=10)
    assert line.drained == []


class Clogged:
    """Nobody reads at the other end."""

    def __init__(self, patience: float | None) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.stuck: list[float] = []
        self.out = Outgoing(self.ours, lambda: None, lambda: self.stuck.append(time.monotonic()))
        self.out.patience = patience
        self.began = time.monotonic()
        self.out.write([bytes(4 << 20)])

    def end(self) -> None:
        self.out.close()
        self.ours.close()
        self.theirs.close()


def test_who_takes_nothing_for_too_long_is_given_up() -> None:
    line = Clogged(0.03)
    with gevent.Timeout(10):
        while not line.stuck:
            gevent.sleep(0.002)
    assert line.stuck[0] - line.began >= 0.03
    line.end()


@pytest.mark.parametrize("patience", [None, 0.05])
def test_who_takes_something_or_may_take_its_time_is_not(patience: float | None) -> None:
    line = Clogged(patience)
    for _ in range(10):
        gevent.sleep(0.02)
        if patience:
            line.out._progress = time.monotonic()
    assert line.stuck == []
    if patience:
        with gevent.Timeout(10):
            while not line.stuck:  # once it takes nothing more
                gevent.sleep(0.01)
    line.end()


def test_who_has_been_sent_all_is_not_given_up_later(line: Line) -> None:
    line.out.patience = 0.02
    line.takes = [1]
    line.out.write([b"xy"])
    turn()
    assert line.out.size == 0
    gevent.sleep(0.05)
    line.out.write([b"z"])
    turn()
    assert line.stuck == 0


def test_an_end_waits_for_what_is_to_be_sent_and_no_longer(line: Line) -> None:
    began = time.monotonic()
    line.takes = [1, 1]
    line.out.write([b"xyz"])
    line.out.linger(10)
    assert (b"".join(line.sent), line.out.size) == (b"xyz", 0)
    line.out.between_layers = True
    line.out.write([b"more"])
    line.out.linger(0.02)
    assert line.out.size == 4
    gevent.spawn_later(0.01, line.out.close)
    line.out.linger(10)
    assert time.monotonic() - began < 9


def test_what_is_closed_waits_for_no_room() -> None:
    line = Clogged(10.0)
    turn()
    held: Any = line.out._watcher
    assert held is not None
    line.out.close()
    assert (line.out._watcher, line.out._alarm.when) == (None, float("inf"))
    line.end()


def test_what_is_closed_holds_nothing_of_what_was_to_be_sent(line: Line) -> None:
    """A client that has gone may stay referenced for longer."""
    body = bytes(range(200))
    before = sys.getrefcount(body)
    line.out.write([body])
    assert sys.getrefcount(body) > before
    line.out.close()
    assert sys.getrefcount(body) == before
