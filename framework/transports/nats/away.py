"""A connection to JetStream whose session has ended while calls run: another session is dialled, by which they can be settled.

JetStream knows a message by the subject of its acknowledgement, whoever sends that, and its lease goes on meanwhile.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from time import monotonic

import gevent

from framework.errors import REFUSALS, BrokerUnreachable, FrameworkError
from framework.transports.nats.carrier import Carrier

LONGEST_PAUSE = 1.0
"""Seconds between two dials."""


class MadeAnew(BrokerUnreachable):
    """The consumer, or its stream, was lost and made again: its numbers begin at 1, and what is said of an old message would
    settle a new one."""


class Away:
    """Dials at once, and again and again. Then ``back(session)`` is called, or else ``over(error)``. On one hub."""

    def __init__(
        self, renewed: Callable[[], Carrier], error: Exception, *, back: Callable[[Carrier], None],
        over: Callable[[Exception | None], None],
    ) -> None:  # fmt: skip
        """``error``: why the session has ended."""
        self._renewed = renewed
        self._error = error
        self._back = back
        self._over = over
        self._until = math.inf
        self._closed = False
        self._greenlet = gevent.spawn(self._dial)

    def waits(self, until: float) -> None:
        """Something was settled meanwhile, whose lease ends then (monotonic): later it is not to be said."""
        self._until = min(self._until, until)

    def look(self, now: float, *, idle: bool) -> None:
        """``idle``: there is nothing any more that could be settled."""
        if idle or now >= self._until:
            self._over(self._error)

    def close(self) -> None:
        self._closed = True
        if gevent.getcurrent() is not self._greenlet:
            self._greenlet.kill(block=False)

    def _dial(self) -> None:
        pause = 0.05
        while not self._closed:
            try:
                session = self._renewed()
            except FrameworkError as error:
                self._error = error
                if isinstance(error, (*REFUSALS, MadeAnew)):
                    self._over(error)
                    return
            else:
                self._over(self._error) if monotonic() >= self._until else self._back(session)
                return
            gevent.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)
