"""For how long something has failed on end. It knows no clock: whoever asks says what time it is."""

from __future__ import annotations

from math import inf

APART = 60.0
"""Seconds between two failures after which the second is another matter: nobody knows how it was in between."""


class OnEnd:
    """Its failures, each one with when it was begun and when it was over (both monotonic)."""

    def __init__(self) -> None:
        self._since = self._last = -inf

    def failed(self, began: float, over: float) -> float:
        """Seconds for which it has failed by now."""
        if began - self._last > APART:
            self._since = began
        self._last = max(self._last, over)
        return over - self._since

    def worked(self) -> None:
        self._last = -inf
