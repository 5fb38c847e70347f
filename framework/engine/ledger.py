"""How every message of one handler ended: plain counters. It decides nothing and knows no broker."""

from __future__ import annotations

from dataclasses import asdict, dataclass

OUTCOMES = ("finished", "requeued", "dead", "lease_lost", "lost")
"""How a message ends: names of counters."""


@dataclass(slots=True)
class Ledger:
    """The counters of one handler; ``transports.contract.Tally`` is the connection's view of it.

    At any moment received = finished + requeued + dead + lease_lost + lost + in flight + settled but unsent.
    """

    received: int = 0
    finished: int = 0
    requeued: int = 0
    dead: int = 0
    lease_lost: int = 0
    lost: int = 0
    """For good: not handled, and of a broker that delivers nothing twice."""

    def dead_lettered(self) -> None:
        """A message was dead-lettered: its finish, which a connection counts when sent, belongs to ``dead``.

        So ``finished`` runs one behind until that finish has been sent; the sum is right all the time.
        """
        self.dead += 1
        self.finished -= 1

    def deferred(self) -> None:
        """A message was stored elsewhere until it is due: its finish belongs to ``requeued``."""
        self.requeued += 1
        self.finished -= 1

    def not_dead_lettered(self) -> None:
        """The finish of a dead-lettered message was refused: it comes again, and is one whose lease was lost."""
        self.dead -= 1
        self.finished += 1

    def not_deferred(self) -> None:
        """The same, of one that was stored elsewhere until it is due."""
        self.requeued -= 1
        self.finished += 1

    @property
    def settled(self) -> int:
        """How many messages have ended, in whatever way."""
        return self.finished + self.requeued + self.dead + self.taken_away

    @property
    def taken_away(self) -> int:
        """How many have ended, and no call of theirs is why."""
        return self.lease_lost + self.lost

    def balance(self, in_flight: int) -> int:
        """What is missing (positive) or counted twice (negative) with ``in_flight`` messages in flight or unsent; 0 is right."""
        return self.received - self.settled - in_flight

    def as_dict(self) -> dict[str, int]:
        """The counters by name, in the order of a message's life; ``lost`` only where something is, as on few brokers."""
        counts = asdict(self)
        if not self.lost:
            del counts["lost"]
        return counts
