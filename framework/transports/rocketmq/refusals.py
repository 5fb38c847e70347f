"""What a broker refuses for now: said once, and asked for again a second later; and what it answers with nothing. No I/O here,
and no clock of its own."""

from __future__ import annotations

from framework.message import Origin
from framework.observe import hublog
from framework.transports.rocketmq.wire.errors import RocketError

log = hublog.get(__name__)

RETRY = 1.0
"""Seconds before it is asked for again."""
EMPTY = 0.25
"""Seconds before it is asked again after an answer that brought nothing, and did not wait for anything either: without them a
broker that gives such answers was asked 18,000 times a second."""
_REMEMBERED = 100
"""Words of a broker: those about two queues differ, and come in turns."""


class Refusals:
    """Of one connection. ``what``: the name of the request."""

    def __init__(self, connection: Origin, what: str) -> None:
        self._connection, self._what = connection, what
        self._said: set[str] = set()
        self.until = 0.0
        """When it is asked for again (monotonic); 0: now."""

    def note(self, error: RocketError, at: float) -> None:
        """It was refused; ``at``: monotonic."""
        self.until = at + RETRY
        if error.words in self._said:
            return
        if len(self._said) >= _REMEMBERED:
            self._said.clear()
        self._said.add(error.words)
        one = self._connection
        log.warning("%s/%s: %s refuses a %s: %s", one.topic, one.channel, one.node, self._what, error)

    def note_nothing(self, at: float) -> None:
        """An answer brought nothing; ``at``: monotonic."""
        self.until = max(self.until, at + EMPTY)

    def are_over(self, now: float) -> bool:
        """Whether it is to be asked for again; says so once."""
        over = 0.0 < self.until <= now
        if over:
            self.until = 0.0
        return over
