"""How closely calls begin one after the other."""

from __future__ import annotations

import math
import time
from collections import deque


class Begun:
    """``shortest``: the least time, seconds, in which so ``many`` calls have begun.

    They need not have run at one moment: what is asked for in two lots comes in two, for as long as the worker runs.
    """

    def __init__(self, many: int) -> None:
        self.shortest = math.inf
        self._times: deque[float] = deque(maxlen=many)

    def one(self) -> None:
        self._times.append(time.monotonic())
        if len(self._times) == self._times.maxlen:
            self.shortest = min(self.shortest, self._times[-1] - self._times[0])
