"""What waits to be sent on a session, in order, and what the socket took only a part of. It knows no frames.

Whoever sends holds the session's lock: mostly the hub, and another native thread while that is blocked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from framework.transports.stream import Socket


class Outbox:
    """Bytes, and who is to be told when the socket has taken theirs whole."""

    __slots__ = ("_at", "_marks", "_queued", "_tail", "_waiting", "sent")

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._marks: deque[tuple[int, object, Callable[[], None]]] = deque()
        self._queued = self.sent = 0
        """Bytes ever queued, and ever taken by the socket."""
        self._tail = b""
        self._at = 0

    def put(self, data: bytes, owner: object = None, then: Callable[[], None] | None = None) -> None:
        """``then`` is called by ``tell`` once the socket has all of ``data``."""
        self._waiting.append(data)
        self._queued += len(data)
        if then is not None:
            self._marks.append((self._queued, owner, then))

    @property
    def full(self) -> bool:
        """The socket refused; nothing else is collected until it takes the rest, so that no copy grows."""
        return bool(self._tail)

    def send(self, sock: Socket) -> None:
        """Hand all to the socket. Raises OSError."""
        if self._tail and not self._push(sock):
            return
        parts, self._waiting = self._waiting, []
        self._tail = b"".join(parts)
        if self._tail:
            self._push(sock)

    def _push(self, sock: Socket) -> bool:
        """Whether the socket has taken all."""
        try:
            taken = sock.send(memoryview(self._tail)[self._at :])
        except BlockingIOError:
            return False
        self.sent += taken
        self._at += taken
        if self._at < len(self._tail):
            return False
        self._tail, self._at = b"", 0
        return True

    def tell(self) -> None:
        """On the hub: let those know whose bytes the socket has taken whole."""
        while self._marks and self._marks[0][0] <= self.sent:
            self._marks.popleft()[2]()

    @property
    def untold(self) -> bool:
        """Somebody does not know yet that the socket has taken what is theirs."""
        return bool(self._marks) and self._marks[0][0] <= self.sent

    def forget(self, owner: object) -> None:
        """``owner`` has ended: it is told nothing any more."""
        self._marks = deque(mark for mark in self._marks if mark[1] is not owner)
