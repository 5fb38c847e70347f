"""How much of a queue group's traffic a worker asks for: as much as it has room for. Arithmetic only.

A server draws one member for each message, every one as often as its weight says. Measured on nats-server 2.9 and 2.15: a draw
costs them memory for each unit of weight, which is nothing up to some thousands in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import random
from typing import TypeVar

PER_SLOT = 256
"""Weight of one free slot. A worker without any still has 1, or nobody would take what comes while all are full; this many times
as much goes to whoever has room."""
MOST = 5000
"""The sum of the weights of all members, about."""

Member = TypeVar("Member")


def weight(free: int, members: int) -> int:
    """Of a worker with ``free`` slots that nothing waits for, in a queue group of so many ``members``, itself included."""
    return max(1, min(free * PER_SLOT, MOST // max(1, members)))


def draw(members: Sequence[tuple[Member, int]]) -> Member:
    """One of ``members``, each as likely as its weight, which is over 0, says."""
    at = random() * sum(share for _, share in members)
    for member, share in members:
        at -= share
        if at < 0:
            return member
    return members[-1][0]
