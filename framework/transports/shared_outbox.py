"""What the socket of a session took only a part of, and who is to know when it has taken theirs. It knows no frames.

Whoever sends holds the session's lock: mostly the hub, and another native thread while that is blocked.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from framework.transports.stream import Socket

_M = TypeVar("_M")


class SharedOutbox(Generic[_M]):
    """A mark stands behind what was queued for somebody, until that is sent."""

    __slots__ = ("_at", "_marks", "_tail", "queued", "sent")

    def __init__(self) -> None:
        self.queued = self.sent = 0
        """Bytes ever made ready to be sent, and ever handed to the socket."""
        self._marks: deque[tuple[int, _M]] = deque()
        self._tail = b""
        self._at = 0

    def _tell(self, mark: _M) -> None:
        """All before it is with the socket."""
        raise NotImplementedError

    @property
    def full(self) -> bool:
        """The socket refused; nothing else is collected until it takes the rest, so that no copy grows."""
        return bool(self._tail)

    def _put(self, sock: Socket, parts: list[bytes]) -> None:
        """Raises OSError."""
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

    @property
    def untold(self) -> bool:
        """Somebody does not know yet that what it said is with the socket."""
        return bool(self._marks) and self._marks[0][0] <= self.sent

    def tell(self) -> None:
        """On the hub: let those know whose bytes the socket has taken whole."""
        while self._marks and self._marks[0][0] <= self.sent:
            self._tell(self._marks.popleft()[1])
