"""What one connection has settled or touched and the server has not been told, or may not have read yet. No I/O here.

While the hub is blocked another native thread takes from it: each step is one that nothing interrupts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import NamedTuple

from framework.transports.contract import Tally
from framework.transports.nats.carrier import Carrier
from framework.transports.nats.outbox import Owner, Said
from framework.transports.nats.settling import ACK_MORE, ack, nak, taken, term, touch

LAG = 2.0
"""Seconds before the last message came, in which a server that led may have been told and have told no other."""


class Nak(NamedTuple):
    """A message to be given back: where, after how many seconds from ``at``, and until when nobody else can have it."""

    reply: bytes
    delay: float
    at: float
    until: float
    again: bool = False
    """It was said before: the delay goes on from then."""

    def left(self, now: float) -> float:
        return max(0.0, self.at + self.delay - now) if self.again else self.delay

    def anew(self) -> Nak:
        """To be said again: before it is due, as long as nobody else can have it."""
        return self._replace(until=min(self.until, self.at + self.delay), again=True)


class Taken(NamedTuple):
    """What is to be said now: ``first`` is ahead of all else that a connection says, ``last`` behind it."""

    first: list[bytes]
    last: list[bytes]
    acks: list[bytes]
    """Where messages are finished with it, and in ``terms`` terminated."""
    terms: list[bytes]
    naks: list[Nak]
    touches: int

    @property
    def finished(self) -> int:
        return len(self.acks) + len(self.terms)

    @property
    def matters(self) -> bool:
        """Whether to have it confirmed that it is read."""
        return bool(self.touches or self.acks or self.terms or any(one.delay for one in self.naks))


NOTHING = Taken([], [], [], [], [], 0)


class Settlements:
    """In the order in which they came, but for touches, which are to be read before what settles."""

    def __init__(self, session: Carrier, tally: Tally) -> None:
        self._tally = tally
        self._closed = False
        self.acks: list[bytes] = []
        """Where each message that is finished is acknowledged."""
        self._touches: list[bytes] = []
        self._naks: list[Nak] = []
        self._terms: list[bytes] = []
        """Where each message that was given up is terminated."""
        self._under_way = 0
        self._unread: deque[Sent] = deque()
        """What the server is not known to have read, and is to be said again then: a connection that breaks takes it along."""
        self.carry_over(session)

    def carry_over(self, session: Carrier) -> None:
        """What is taken goes there from now on."""
        self._session = session
        self._commands = session.commands
        self._certain = 0.0 if session.relays else math.inf
        """What was said before that the leader has taken, if the server has read it."""

    def __len__(self) -> int:
        """Messages whose settlement was not taken yet."""
        return len(self.acks) + len(self._terms) + len(self._naks)

    def touch(self, reply: bytes) -> None:
        self._touches.append(reply)

    def terminate(self, reply: bytes) -> None:
        self._terms.append(reply)

    def give_back(self, reply: bytes, delay: float, until: float) -> None:
        """``delay``: seconds. ``until``: when its lease ends."""
        self._naks.append(Nak(reply, delay, monotonic(), until))

    def take(self, due: Sequence[bytes] = ()) -> Taken:
        """All of it. ``due``: what is to be touched beside."""
        acks, terms, naks, touches = taken(self.acks), taken(self._terms), taken(self._naks), taken(self._touches)
        touches += due
        first = [touch(touches, self._commands), ack(acks, self._commands), *(term(one, self._commands) for one in terms)]
        now = monotonic()
        held = [one for one in naks if now < one.until]
        self._tally.lease_lost += len(naks) - len(held)
        last = [nak(one.reply, one.left(now), self._commands) for one in held]
        return Taken(first, last, acks, terms, held, len(touches))

    def said(self, owner: Owner, some: Taken, asked: Iterable[bytes] = ()) -> tuple[bytes, Sent | None]:
        """``some`` of what ``owner`` has settled, with what it asks for in between."""
        parts = [*some.first, *asked, *some.last]
        size = sum(map(len, parts))
        return b"".join(parts), self.leave(owner, some, size) if size else None

    def leave(self, owner: Owner, some: Taken, size: int) -> Sent:
        """``some`` of what ``owner`` has settled is on its way, in so many bytes."""
        self._under_way += size
        said = Sent(owner, self, some, size)
        while self._unread and self._unread[0].read(min(self._session.heeded, self._certain)):
            self._unread.popleft()
        if self._unread and not self._unread[-1].settles and self._unread[-1].read(self._session.heeded):
            self._unread.pop()  # nobody says a touch again: a call of hours would have thousands here
        if some.matters:
            self._unread.append(said)
        return said

    def vouch(self) -> None:
        """The server that leads is heard of: it takes what is said."""
        if self._session.relays:
            self._certain = monotonic() - LAG

    def say_again(self) -> None:
        """Another server leads: what was read last may have been passed on to nobody. To say it twice does no harm."""
        said = [one for one in self._unread if one.counted]
        self._unread = deque(one for one in self._unread if not one.counted)
        now = monotonic()
        again = [new for one in said for nak in one.some.naks if nak.delay and now < (new := nak.anew()).until]
        self._tally.finished -= sum(one.acks for one in said)
        self._tally.requeued -= len(again)
        self._say_again(said)
        self._naks[:0] = again

    def arrived(self, said: Sent) -> None:
        """It has been handed to the socket, or read."""
        self._under_way -= said.size
        if not self._closed:
            said.counted = True
            self._tally.finished += said.acks
            self._tally.requeued += said.naks

    def missed(self, said: Sent) -> None:
        """Nobody is there any more who could have read it: the next is told."""
        self._under_way -= said.size
        if not self._closed:
            if said in self._unread:
                self._unread.remove(said)
            self._say_again([said])
            now = monotonic()
            again = [new for one in said.some.naks if now < (new := one.anew()).until]
            self._naks[:0] = again
            self._tally.lease_lost += said.naks - len(again)

    def _say_again(self, some: list[Sent]) -> None:
        self.acks[:0] = [reply for said in some for reply in said.some.acks]
        self._terms[:0] = [reply for said in some for reply in said.some.terms]

    def _give_back_again(self, unread: list[Sent], waiting: list[Said]) -> None:
        """What is to come after a while, and is not due yet: nobody else has it, and to say it twice does no harm. The rest comes
        again by itself."""
        now = monotonic()
        lost = len(self._naks) + sum(each.naks for each in waiting)
        late = [one for said in unread for one in said.some.naks] + self._naks
        again = [new for one in late if now < (new := one.anew()).until]
        told = [one for said in unread if said.counted for one in said.some.naks if now < one.anew().until]
        self._tally.requeued -= len(told)
        self._tally.lease_lost += lost - (len(again) - len(told))
        self._naks[:] = again

    def finishing(self) -> list[bytes]:
        """Where each message is settled that is finished, and the server is not known to have read it."""
        left = [said.some for said in self._unread if not said.read(self._session.heeded)]
        unread = [reply for some in left for reply in (*some.acks, *some.terms)]
        return [*self.acks, *self._terms, *unread]

    def given_back(self) -> list[bytes]:
        """Where each message is to be given back."""
        return [one.reply for one in self._naks]

    @property
    def settled(self) -> bool:
        """The server has read all that was ever said, and nothing waits to be said."""
        return not len(self) and all(said.read(self._session.heeded) for said in self._unread)

    def unheard(self) -> float:
        """Seconds for which a server has not confirmed that it has read what is to be read; 0: there is nothing."""
        waiting = [said.at for said in self._unread if not said.read(self._session.heeded)]
        return monotonic() - waiting[0] if waiting else 0.0

    def unsent(self, *, unread: bool = False) -> int:
        """Bytes; with ``unread`` also those that no server is known to have read."""
        alike = [*self.acks, *self._terms, *self._touches]
        naks = [nak(one.reply, one.delay, self._commands) for one in self._naks]
        waiting = sum(map(len, [*naks, *alike])) + len(alike) * ACK_MORE + len(self._terms)  # +TERM has a letter more
        if unread:
            waiting += sum(said.size for said in self._unread if said.counted and not said.read(self._session.heeded))
        return waiting + self._under_way

    def recall(self, waiting: list[Said]) -> None:
        """The session has ended: what finishes, and was not read for certain, is to be said again, which does no harm to what was
        read. So is what gives back after a delay; without one it is lost, and comes again when its lease ends. ``waiting`` was
        only begun to be said."""
        unread = [said for said in self._unread if not said.read(self._session.heeded)]
        self._unread.clear()
        self._tally.finished -= sum(said.acks for said in unread if said.counted)
        self._say_again(unread)
        self._give_back_again(unread, waiting)
        self._touches.clear()
        self._under_way = 0

    def lose(self, waiting: list[Said]) -> None:
        """JetStream delivers again what was settled and not said for certain: ``waiting`` was only begun to be."""
        self._tally.lease_lost += len(self) + sum(each.acks + each.naks for each in waiting)
        for each in (self.acks, self._touches, self._naks, self._terms):
            each.clear()
        self._unread.clear()
        self._under_way = 0

    def close(self) -> None:
        """Count nothing more."""
        self._closed = True


class Sent:
    """``outbox.Said``: settlements of one connection on their way to the server."""

    __slots__ = ("_settlements", "acks", "at", "counted", "naks", "owner", "size", "some")

    def __init__(self, owner: Owner, settlements: Settlements, some: Taken, size: int) -> None:
        self.owner, self._settlements, self.some, self.size = owner, settlements, some, size
        self.acks, self.naks = some.finished, len(some.naks)
        self.at = monotonic()
        self.counted = False

    @property
    def settles(self) -> bool:
        """It is more than touches."""
        return bool(self.acks or self.naks)

    def read(self, heeded: float) -> bool:
        """By a server that has heeded all that was said before ``heeded``."""
        return self.counted and self.at < heeded

    def sent(self) -> None:
        self._settlements.arrived(self)

    def lost(self) -> None:
        self._settlements.missed(self)
