"""How long the calls of one handler took, and how long messages waited for them. It costs nothing for each message.

A call over ``FAST`` ends a slot's part of the hub's turn, where it is counted. So the others need no counting: they are all that
the ledger knows of. Waits are sampled: one message for each run of a slot, which at low rates is every message.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Any

from framework.engine.turns import SLICE

FAST = SLICE
RUNNING = (FAST, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0, 300.0)
"""Seconds, the bounds of the buckets; those of OpenTelemetry up to 10."""
WAITING = (*RUNNING, 1800.0, 7200.0)
clock = time.monotonic
_now = time.time


class Times:
    """Written on the hub, read from any thread."""

    __slots__ = ("busy", "ended_at", "slow_calls", "started", "waited", "waits")

    def __init__(self) -> None:
        self.slow_calls = [0] * (len(RUNNING) + 1)
        """By bucket; the first, that of fast ones, stays 0."""
        self.busy = 0.0
        """Seconds of all calls that have ended."""
        self.waits = [0] * (len(WAITING) + 1)
        """Sampled; of messages that had not been delivered before."""
        self.waited = 0.0
        """Seconds, of the sample."""
        self.ended_at = clock()
        """When a call ended last, monotonic."""
        self.started = 0.0
        """When the message was published that was started last, seconds since 1970."""

    def slow(self, seconds: float) -> None:
        """A call of more than ``FAST``."""
        self.slow_calls[bisect_left(RUNNING, seconds)] += 1

    def ran(self, began: float, started: float, ended: float, job: Any) -> None:
        """A slot has made calls from ``began`` to ``ended``; the last of them, for ``job``, at ``started``."""
        self.busy += ended - began
        self.ended_at = ended
        message = job[0] if isinstance(job, list) else job
        if message.attempts == 1:
            published = message.timestamp * 1e-9
            waited = max(0.0, _now() - (ended - started) - published)
            self.waits[bisect_left(WAITING, waited)] += 1
            self.waited += waited
            self.started = published
