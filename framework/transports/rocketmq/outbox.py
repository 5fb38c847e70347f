"""What waits to be sent on a session, in order. It knows no frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from framework.transports.shared_outbox import SharedOutbox
from framework.transports.stream import Socket


class Outbox(SharedOutbox[tuple[object, Callable[[], None]]]):
    """Bytes, and who is to be told when the socket has taken theirs whole."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[bytes] = []

    def put(self, data: bytes, owner: object = None, then: Callable[[], None] | None = None) -> None:
        """``then`` is called by ``tell`` once the socket has all of ``data``."""
        self._waiting.append(data)
        self.queued += len(data)
        if then is not None:
            self._marks.append((self.queued, (owner, then)))

    def send(self, sock: Socket) -> None:
        """Hand all to the socket. Raises OSError."""
        if self._tail and not self._push(sock):
            return
        parts, self._waiting = self._waiting, []
        self._put(sock, parts)

    def _tell(self, mark: tuple[object, Callable[[], None]]) -> None:
        mark[1]()

    def forget(self, owner: object) -> None:
        """``owner`` has ended: it is told nothing any more."""
        self._marks = deque(mark for mark in self._marks if mark[1][0] is not owner)
