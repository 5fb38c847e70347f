"""What waits to be sent on a session, in the order in which it goes, and what the socket took only a part of.

Whoever sends holds the session's lock: mostly the hub, and another native thread while that is blocked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from time import monotonic
from typing import Protocol

from framework.message import Message
from framework.transports.nats import wire
from framework.transports.shared_outbox import SharedOutbox
from framework.transports.stream import Socket


class Said(Protocol):
    """What an owner has said, and wants to know of."""

    owner: Owner
    acks: int
    naks: int

    def sent(self) -> None:
        """All of it has been handed to the socket."""

    def lost(self) -> None:
        """It went where nobody takes it any more."""


class Owner(Protocol):
    """Whoever subscribes. Called on the hub but for ``keep``."""

    def heard(self, messages: list[wire.Msg], at: float) -> None:
        """What came on its SIDs in one read, in order. ``at``: monotonic time of the read."""

    def turn(self) -> None:
        """Before what it wants to say is collected, once in a turn."""

    def collect(self) -> tuple[bytes, Said | None]:
        """What it has to say. Called by whoever sends; the socket has room."""

    def keep(self, heard: list[wire.Msg], now: float, expired: Collection[Message]) -> tuple[bytes, Said | None]:
        """In another native thread: as ``collect``, while the hub is blocked; ``heard`` is what was read there so far."""

    def resumed(self) -> None:
        """The hub turns again after ``keep``; what was read meanwhile is still to come."""

    def moved(self) -> tuple[bytes, Callable[[], None] | None]:
        """Another server leads what it pulls from, or none does: what it has to say to the one that did, and what is called once
        that has read it, or is gone."""

    def refused(self, words: str) -> bool:
        """The server said -ERR; whether it was about this one's."""

    def lost(self, error: Exception) -> None:
        """The session has ended."""


class Listening:
    """What an Owner does that only listens: what it asks goes by the session itself."""

    def turn(self) -> None: ...

    def collect(self) -> tuple[bytes, None]:
        return b"", None

    def keep(self, heard: list[wire.Msg], now: float, expired: Collection[Message]) -> tuple[bytes, None]:
        return b"", None

    def resumed(self) -> None: ...

    def moved(self) -> tuple[bytes, None]:
        return b"", None


class Outbox(SharedOutbox[Said]):
    """Owners are asked what they have to say when the socket has room for it, so that what one of them says stays in order."""

    __slots__ = ("_asked", "_queue", "dirty", "pings")

    def __init__(self) -> None:
        super().__init__()
        self.dirty: dict[Owner, None] = {}
        """Those who have something to say."""
        self.pings: deque[tuple[float, Callable[[], None] | None]] = deque()
        """When each PING that was not answered yet was sent, and who waits for its answer."""
        self._queue: list[bytes] = []
        self._asked: list[Callable[[], None] | None] = []

    def say(self, command: bytes) -> None:
        """Ahead of what owners have to say."""
        self._queue.append(command)

    def ping(self, then: Callable[[], None] | None) -> None:
        """Behind all that is said in this turn."""
        self._asked.append(then)

    def prove(self) -> None:
        """One PING at least."""
        if not self._asked:
            self._asked.append(None)

    def send(self, sock: Socket) -> None:
        """Hand all to the socket. Raises OSError."""
        if self._tail and not self._push(sock):
            return
        parts, self._queue = self._queue, []
        dirty, self.dirty = self.dirty, {}
        self.queued += sum(map(len, parts))
        self._gather(parts, (owner.collect() for owner in dirty))
        for then in self._asked:  # last of all: its answer says that the rest was read
            self._add_ping(parts, monotonic(), then)
        self._asked.clear()
        self._put(sock, parts)

    def send_in_its_place(
        self, sock: Socket, pongs: int, said: Iterable[tuple[bytes, Said | None]], now: float
    ) -> bool:  # fmt: skip
        """From another thread: ``pongs`` answers, and what is ``said`` for owners. Raises OSError. False: the socket is full, and
        nothing of it is taken."""
        if self._tail and not self._push(sock):
            return False
        parts = [wire.PONG * pongs]
        self.queued += len(parts[0])
        self._gather(parts, said)
        if any(parts[1:]):
            self._add_ping(parts, now, None)
        self._put(sock, parts)
        return True

    def _gather(self, parts: list[bytes], said: Iterable[tuple[bytes, Said | None]]) -> None:
        for part, mark in said:
            parts.append(part)
            self.queued += len(part)
            if mark is not None:
                self._marks.append((self.queued, mark))

    def _add_ping(self, parts: list[bytes], at: float, then: Callable[[], None] | None) -> None:
        parts.append(wire.PING)
        self.queued += len(wire.PING)
        self.pings.append((at, then))

    def _tell(self, mark: Said) -> None:
        mark.sent()

    def forget(self, owner: Owner) -> list[Said]:
        """``owner`` has ended: what it has said and the socket has not taken whole. Nobody is told of it any more."""
        self.dirty.pop(owner, None)
        mine = [mark for mark in self._marks if mark[1].owner is owner]
        self._marks = deque(mark for mark in self._marks if mark not in mine)
        return [said for _, said in mine]
