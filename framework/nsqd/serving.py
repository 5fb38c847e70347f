"""When a channel delivers: round after round, as much as a turn of the hub has time for. What a round is, the channel knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from framework.nsqd import slices

TURN = 2000
"""The most that is delivered, or becomes due, before other work on the hub has its turn."""


class Health(Protocol):
    def works(self, what: str) -> None: ...

    def fails(self, what: str, error: Exception) -> None: ...


class Serving:
    """Of one channel. ``serve()`` is the channel's, which calls ``rounds`` where it may; ``one_round()`` returns how many were
    delivered. ``what`` is said of it where that fails."""

    def __init__(self, serve: Callable[[], None], one_round: Callable[[], int], health: Health, what: str) -> None:
        self._serve = serve
        self._one_round = one_round
        self._health = health
        self._what = what
        self._under_way = self._awaited = False

    def rounds(self) -> None:
        """Until nothing is left to deliver; whatever is too much for one turn follows in the next."""
        if self._under_way:
            return
        self._under_way, left = True, TURN
        try:
            while left > 0 and (sent := self._one_round()):
                left -= sent
            self._health.works(self._what)
        except Exception as error:  # not the business of whoever committed or published what is to be delivered
            self._health.fails(self._what, error)
        finally:
            self._under_way = False
        if left <= 0:
            self.soon()

    def soon(self) -> None:
        """Have the channel served in a turn of its own."""
        if not self._awaited:
            self._awaited = True
            slices.soon(self._serve_awaited)

    def _serve_awaited(self) -> None:
        self._awaited = False
        self._serve()
