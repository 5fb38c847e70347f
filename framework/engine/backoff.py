"""How long to wait before trying again: pure functions of what failed so far. Nothing here sleeps."""

from __future__ import annotations

import random
from collections.abc import Callable

RETRY_BASE = 1.0
"""Seconds: the upper bound of the first retry's delay."""
RETRY_CAP = 600.0
"""Seconds: the upper bound of every retry's delay."""
RECONNECT_BASE = 0.1
RECONNECT_CAP = 15.0
"""Seconds: a node that is back after a long outage is dialled within this time."""


def retry_delay(attempts: int, *, chance: Callable[[], float] = random.random) -> float:
    """Seconds until a message that has been delivered ``attempts`` times is delivered again.

    Exponential with full jitter: messages that failed together do not come back together.
    """
    return chance() * min(RETRY_CAP, _doubled(RETRY_BASE, attempts - 1))


def reconnect_delay(failures: int, *, chance: Callable[[], float] = random.random) -> float:
    """Seconds until a node that failed ``failures`` times in a row is dialled again.

    Half fixed, half jitter: many workers spread out, yet none hammers a node that is down.
    """
    bound = min(RECONNECT_CAP, _doubled(RECONNECT_BASE, failures - 1))
    return bound * (0.5 + 0.5 * chance())


def spread(seconds: float, *, chance: Callable[[], float] = random.random) -> float:
    """``seconds`` or up to 30 % less, drawn anew each round so that a fleet does not poll in step."""
    return seconds * (0.7 + 0.3 * chance())


def _doubled(base: float, times: int) -> float:
    return base * 2.0 ** max(0, min(times, 60))  # 60: an attempts counter of 65535 must not overflow a float
