"""The state of a stop: how often it was asked for, when, and until when running calls may go on. It stops nothing by itself."""

from __future__ import annotations

import math
import time


class Stop:
    """``drain``: seconds that running calls may take to end. Any thread may write it; the hub and the guardian read it."""

    def __init__(self, drain: float) -> None:
        self.drain = drain
        self.times = 0
        self.now = False
        """What runs is given back at once."""
        self.until = math.inf
        """Monotonic: when what still runs is given back."""

    def ask(self, now: bool) -> None:
        """The second time is ``now`` as well."""
        self.times += 1
        if now or self.times > 1:
            self.hurry()
        else:
            self.until = time.monotonic() + self.drain

    def hurry(self) -> None:
        self.until = min(self.until, time.monotonic())
        self.now = True
