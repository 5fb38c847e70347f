"""The memory broker's clock: real time and what a test has added to it. Only the broker goes by it, the engine does not."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time


class Clock:
    """Seconds that only go forward. Delays, deferrals and leases of one broker are measured by it.

    ``advance`` moves what the broker does: what was deferred comes due, what is in flight loses its lease. The engine's own
    times stay real: a handler's timeout, touching, a batch's linger, pauses between two dials.
    """

    def __init__(self, moved: Callable[[], None]) -> None:
        """``moved`` is called after each advance."""
        self._added = 0.0
        self._moved = moved

    def now(self) -> float:
        return monotonic() + self._added

    def wall(self) -> float:
        """Seconds since 1970, and what was added."""
        return time() + self._added

    def real(self, when: float) -> float:
        """The monotonic time at which it will be ``when`` here, if nobody advances it."""
        return when - self._added

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass at once. Raises ValueError when they are negative."""
        if seconds < 0:
            raise ValueError(f"advance({seconds}): time goes forward only, give 0 seconds or more")
        self._added += seconds
        self._moved()
