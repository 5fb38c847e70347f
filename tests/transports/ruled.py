"""A socket, a clock and a timer that a test rules."""

from __future__ import annotations

import _socket
import socket
import time
from collections.abc import Callable
from typing import Any

import gevent


class Clock:
    """Seconds, which pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Timer:
    """A timer of the hub's, or a ``Countdown``, that is over when a test says so."""

    def __init__(self, _loop: object, seconds: float) -> None:
        self.seconds = seconds
        self.active = self.closed = False
        self.starts = 0
        self._over: Callable[[], object] = self.close

    def start(self, call: Callable[..., object], *arguments: object) -> None:
        self.starts += 1
        self.active, self._over = True, lambda: call(*arguments)

    def is_over(self) -> None:
        self.active = False
        self._over()

    def stop(self) -> None:
        self.active = False

    def close(self) -> None:
        self.active, self.closed = False, True


class Narrow:
    """A socket that takes ``room`` bytes and then no more, until it is given more; ``sends`` are those that it took."""

    def __init__(self, below: _socket.socket) -> None:
        self._below = below
        self.room = 1 << 30
        self.error: OSError | None = None
        self.sends: list[bytes] = []
        self.reads = 0
        self.lows: list[int] = []
        """For how many bytes it was told to wake up, one after the other."""

    def send(self, data: Any) -> int:
        if self.error is not None:
            raise self.error
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

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self._below.getsockopt(level, option)  # which raises where it is closed
        self.lows.append(value)

    def shutdown(self, how: int) -> None:
        self._below.shutdown(how)

    def close(self) -> None:
        self._below.close()


def soon(condition: Callable[[], Any]) -> Any:
    """Turn the hub until ``condition`` holds; fails the test when it does not in time."""
    deadline = time.monotonic() + 20
    while not (value := condition()):
        assert time.monotonic() < deadline
        gevent.sleep(0.001)
    return value
