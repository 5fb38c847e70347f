"""Which leases of a connection are over, by our own clock: JetStream does not say so. No I/O here."""

from __future__ import annotations

from collections.abc import Collection
from operator import itemgetter

from framework.message import Message
from framework.transports.contract import TOUCH_AT
from framework.transports.lease_guard import CERTAIN
from framework.transports.nats.carrier import Proving


class Leases:
    """``lease_guard.Leases``: a touch counts once the server is known to have read it.

    ``session.proven`` tells that. Times are monotonic."""

    def __init__(self, session: Proving, lease: float) -> None:
        self._session = session
        self.change(lease)
        self.known: dict[Message, tuple[float, float]] = {}
        """Message -> when its lease began for certain, and the touch that may have begun it anew."""
        self._touched: dict[Message, float] = {}
        """Message -> when it was touched in the hub's place."""

    def change(self, lease: float) -> None:
        """Leases are of so many seconds from now on."""
        self._lease, self._certain = lease, lease * CERTAIN

    def touched(self, message: Message, before: float, now: float) -> None:
        began, asked = self.known.get(message, (before, 0.0))
        if asked <= self._session.proven:  # else that one counts first
            self.known[message] = (max(began, asked), now)

    def untouched(self, message: Message, before: float) -> None:
        """The server is not told of it yet: its lease goes on from ``before``."""
        self.known.setdefault(message, (before, 0.0))

    def drop(self, message: Message) -> None:
        self.known.pop(message, None)
        self._touched.pop(message, None)

    def over(self, in_flight: dict[Message, float], now: float) -> list[Message]:
        """Those in flight whose lease has run out."""
        limit = now - self._certain
        found = [message for message in list(self.known) if self._began(message) <= limit]
        for message, at in in_flight.items():
            if at > limit:
                break
            if message not in self.known:
                found.append(message)
        return found

    def is_over(self, message: Message, at: float, now: float) -> bool:
        """``at``: when it was received or touched."""
        if self.known and message in self.known:
            at = self._began(message)
        return at + self._certain <= now

    def end(self, message: Message, at: float) -> float:
        """Until when it is held for certain."""
        return (self._began(message) if message in self.known else at) + self._certain

    def carry_over(self, session: Proving) -> None:
        """Another session takes the place of one that has ended. A touch that nobody is known to have read counts no more."""
        for message in self.known:
            self.known[message] = (self._began(message), 0.0)
        self._session = session

    def _began(self, message: Message) -> float:
        began, asked = self.known[message]
        return asked if 0 < asked <= self._session.proven else began

    def kept(self) -> list[tuple[Message, float]]:
        """What was touched in the hub's place since this was asked last, the oldest first."""
        kept, self._touched = self._touched, {}
        return sorted(kept.items(), key=itemgetter(1))

    def due(self, in_flight: list[tuple[Message, float]], now: float, expired: Collection[Message]) -> list[Message]:
        """In another thread: those to touch now, which are known as touched then."""
        found = []
        for message, at in in_flight:
            last = self._touched.get(message, at)
            if now - max(last, at) >= self._lease * TOUCH_AT and message not in expired:
                self.touched(message, at, now)
                self._touched[message] = now
                found.append(message)
        return found
