"""The commands that wait to be sent on one subscription, in their order, and what the socket took only a part of."""

from __future__ import annotations

from collections.abc import Sequence

from gevent.socket import socket

from framework.transports.contract import Tally
from framework.transports.nsq import wire
from framework.transports.nsq.rescue import Rescue, taken


class Outbox:
    """A TOUCH asked for before a FIN must reach nsqd before it, and RDY counts on the FINs before it.

    The lists are emptied in place, so that the hot path may hold on to them. Whoever sends holds the connection's lock."""

    __slots__ = ("_at", "_tail", "fins", "first", "others", "rdy", "reqs", "touches")

    def __init__(self) -> None:
        self.first = b""
        """Ahead of all that is not on its way yet."""
        self.touches: list[bytes] = []
        self.fins: list[bytes] = []
        """Ids, as in ``touches``."""
        self.reqs: list[bytes] = []
        self.rdy: int | None = None
        self.others: list[bytes] = []
        self._tail = b""  # a send that the socket took in part, and from where
        self._at = 0

    def size(self) -> int:
        """Bytes, but for an RDY, for which nobody waits."""
        settled = wire.FIN_SIZE * len(self.fins) + wire.TOUCH_SIZE * len(self.touches)
        return len(self._tail) - self._at + settled + sum(map(len, self.reqs)) + sum(map(len, self.others))

    def send(self, sock: socket, tally: Tally) -> bool:
        """Hand all to the socket, counted as sent. False: it refused, and everything stays where it is, so that no copy grows.

        Raises OSError."""
        if not self.send_tail(sock):
            return False
        self._tail = self._collect(tally)
        return self.send_tail(sock)

    def send_tail(self, sock: socket) -> bool:
        """Whether nothing is on its way any more. Raises OSError."""
        if self._tail:
            try:
                self._at += sock.send(memoryview(self._tail)[self._at :])
            except BlockingIOError:
                return False
            if self._at < len(self._tail):
                return False
            self._tail, self._at = b"", 0
        return True

    def send_in_its_place(self, sock: socket, rescue: Rescue, touches: list[bytes], more: Sequence[bytes] = ()) -> None:
        """From another thread, with ``touches`` of its own, and ``more`` at the end; the hub may add to the lists meanwhile: each
        step of this is one that nothing interrupts. Nothing must be on its way. Raises OSError."""
        touches = taken(self.touches) + touches
        said = rescue.commands(touches, taken(self.fins), taken(self.reqs), taken(self.others))
        self._tail = b"".join([said, *more])
        self.send_tail(sock)

    def _collect(self, tally: Tally) -> bytes:
        parts = []
        if self.first:
            parts.append(self.first)
            self.first = b""
        if self.touches:
            parts.append(wire.touch(self.touches))
            self.touches.clear()
        if self.fins:
            parts.append(wire.fin(self.fins))
            tally.finished += len(self.fins)
            self.fins.clear()
        if self.rdy is not None:  # ahead of what is given back: it could be delivered here again under the old one
            parts.append(wire.rdy(self.rdy))
            self.rdy = None
        if self.reqs:
            parts += self.reqs
            tally.requeued += len(self.reqs)
            self.reqs.clear()
        if self.others:
            parts += self.others
            self.others.clear()
        return b"".join(parts)

    def cut_off(self) -> tuple[int, int]:
        """How many FINs and REQs count as sent that nsqd cannot have read whole, were the connection to end now."""
        cut = self._tail[self._tail.rfind(b"\n", 0, self._at) + 1 :].split(b"\n")
        return sum(line.startswith(b"FIN ") for line in cut), sum(line.startswith(b"REQ ") for line in cut)

    def clear(self) -> None:
        for waiting in (self.touches, self.fins, self.reqs, self.others):
            waiting.clear()
        self._tail, self._at, self.rdy, self.first = b"", 0, None, b""
