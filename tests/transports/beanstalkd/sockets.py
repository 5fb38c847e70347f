"""Sockets that only note what is said on them, for tests of what says it; the test plays the server."""

from __future__ import annotations

from collections import deque
from typing import Any

from framework.transports.beanstalkd import wire


class Socket:
    """``HubSocket``, as far as a waiter uses it."""

    def __init__(self, line: Any, take: Any, ended: Any) -> None:
        self.take, self.ended = take, ended
        self.awaited: deque[object] = deque()
        self.said: list[bytes] = []
        self.node, self.unsent = "a:1", 0
        self.open = True
        self.shuts = self.polls = 0
        self.came = 5.0
        self.lost: list[bytes] = []
        self.found: list[wire.Reply] = []

    def send(self, commands: bytes, asked: Any) -> None:
        self.said.append(commands)
        self.awaited.extend(asked)

    def poll(self) -> None:
        self.polls += 1
        if self.found:
            found, self.found = self.found, []
            self.take(found)

    def shut(self) -> None:
        self.shuts += 1

    def close(self) -> None:
        self.open = False

    forget = close

    def cut(self) -> list[bytes]:
        return self.lost


class Owner:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *of: self.told.append((name, *of))

    def heard(self) -> list[str]:
        """What it was told since the last time."""
        told, self.told = self.told, []
        return [one[0] for one in told]
