"""How much of a queue group's traffic a worker asks for: as much as it has room for. Arithmetic only.

A server draws one member for each message, every one as often as its weight says. Measured on nats-server 2.9 and 2.15: a draw
costs them memory for each unit of weight, which is nothing up to some thousands in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import random
from typing import TypeVar

PER_SLOT = 256
"""Weight of one free slot."""
FULL = 16
"""The weight of a worker without any, at most. It is not 0, or nobody would take what comes while all are full; and of those that
are full the larger one gets more, or a burst would go in equal parts to workers of ten slots and of two."""
MOST = 5000
"""The sum of the weights of all members, about."""

Member = TypeVar("Member")


def weight(slots: int, taken: int, members: int) -> int:
    """Of a worker with so many ``slots``, of which ``taken`` are: by messages that run, and by those that wait here, which may be
    more. ``members``: of the queue group, itself included."""
    free = slots - taken
    wanted = free * PER_SLOT if free > 0 else min(slots + free, FULL)
    return max(1, min(wanted, MOST // max(1, members)))


def draw(members: Sequence[tuple[Member, int]]) -> Member:
    """One of ``members``, each as likely as its weight, which is over 0, says."""
    at = random() * sum(share for _, share in members)
    for member, share in members:
        at -= share
        if at < 0:
            return member
    return members[-1][0]
