"""What one connection has settled or touched and the server has not been told, or may not have read yet. No I/O here.

While the hub is blocked another native thread takes from it: each step is one that nothing interrupts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from framework.transports.contract import Tally
from framework.transports.nats.commands import Commands
from framework.transports.nats.outbox import Owner, Said
from framework.transports.nats.settling import ACK_MORE, ack, nak, taken, term, touch


class Taken(NamedTuple):
    """What is to be said now: ``first`` is ahead of all else that a connection says, ``last`` behind it."""

    first: list[bytes]
    last: list[bytes]
    acks: int
    """Messages that are finished or terminated with it."""
    naks: int
    touches: int


NOTHING = Taken([], [], 0, 0, 0)


class Settlements:
    """In the order in which they came, but for touches, which are to be read before what settles."""

    def __init__(self, commands: Commands, tally: Tally) -> None:
        self._commands = commands
        self._tally = tally
        self._closed = False
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

    def leave(self, owner: Owner, some: Taken, size: int) -> Sent:
        """``some`` of what ``owner`` has settled is on its way, in so many bytes."""
        self._under_way += size
        return Sent(owner, self, some, size)

    def arrived(self, said: Sent, *, read: bool) -> None:
        """It has been handed to the socket; or nobody is there any more who could have read it."""
        self._under_way -= said.size
        if self._closed:
            return
        if read:
            self._tally.finished += said.acks
            self._tally.requeued += said.naks
        else:
            self._tally.lease_lost += said.acks + said.naks

    def unsent(self) -> int:
        """Bytes."""
        waiting = sum(map(len, [*self._naks, *self._terms])) + sum(len(each) + ACK_MORE for each in [*self.acks, *self._touches])
        return waiting + self._under_way

    def lose(self, waiting: list[Said]) -> None:
        """JetStream delivers again what was settled and not said for certain: ``waiting`` was only begun to be."""
        self._tally.lease_lost += len(self) + sum(each.acks + each.naks for each in waiting)
        for each in (self.acks, self._touches, self._naks, self._terms):
            each.clear()
        self._under_way = 0

    def close(self) -> None:
        """Count nothing more."""
        self._closed = True


class Sent:
    """``outbox.Said``: settlements of one connection on their way to the server."""

    __slots__ = ("_settlements", "acks", "naks", "owner", "size")

    def __init__(self, owner: Owner, settlements: Settlements, some: Taken, size: int) -> None:
        self.owner, self._settlements, self.size = owner, settlements, size
        self.acks, self.naks = some.acks, some.naks

    def sent(self) -> None:
        self._settlements.arrived(self, read=True)

    def lost(self) -> None:
        self._settlements.arrived(self, read=False)
