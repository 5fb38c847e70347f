"""What one connection has settled or touched and the server has not been told, or may not have read yet. No I/O here.

While the hub is blocked another native thread takes from it: each step is one that nothing interrupts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from framework.transports.nats.commands import Commands
from framework.transports.nats.settling import ACK_MORE, ack, nak, taken, term, touch


class Taken(NamedTuple):
    """What is to be said now: ``first`` is ahead of all else that a connection says, ``last`` behind it."""

    first: list[bytes]
    last: list[bytes]
    acks: int
    """Messages that are finished or terminated with it."""
    naks: int
    touches: int


class Settlements:
    """In the order in which they came, but for touches, which are to be read before what settles."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self.acks: list[bytes] = []
        """Where each message that is finished is acknowledged."""
        self._touches: list[bytes] = []
        self._naks: list[bytes] = []
        self._terms: list[bytes] = []
        self._under_way = 0

    def __len__(self) -> int:
        """Messages whose settlement was not taken yet."""
        return len(self.acks) + len(self._terms) + len(self._naks)

    def touch(self, reply: bytes) -> None:
        self._touches.append(reply)

    def terminate(self, reply: bytes) -> None:
        self._terms.append(term(reply, self._commands))

    def give_back(self, reply: bytes, delay: float) -> None:
        """``delay``: seconds."""
        self._naks.append(nak(reply, delay, self._commands))

    def take(self, due: Sequence[bytes] = ()) -> Taken:
        """All of it. ``due``: what is to be touched beside."""
        acks, terms, naks, touches = taken(self.acks), taken(self._terms), taken(self._naks), taken(self._touches)
        touches += due
        first = [touch(touches, self._commands), ack(acks, self._commands), *terms]
        return Taken(first, naks, len(acks) + len(terms), len(naks), len(touches))

    def leaves(self, size: int) -> None:
        """So many bytes are under way, until they have ``arrived``."""
        self._under_way += size

    def arrived(self, size: int) -> None:
        self._under_way -= size

    def unsent(self) -> int:
        """Bytes."""
        waiting = sum(map(len, [*self._naks, *self._terms])) + sum(len(each) + ACK_MORE for each in [*self.acks, *self._touches])
        return waiting + self._under_way

    def clear(self) -> None:
        for each in (self.acks, self._touches, self._naks, self._terms):
            each.clear()
        self._under_way = 0
