"""A connection to JetStream whose session has ended while calls run: another session is dialled, by which they can be settled.

JetStream knows a message by the subject of its acknowledgement, whoever sends that, and its lease goes on meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import gevent

from framework.errors import REFUSALS, FrameworkError
from framework.transports.nats.carrier import Carrier

LONGEST_PAUSE = 1.0
"""Seconds between two dials."""


class Away:
    """Dials at once, and again and again. Then ``back(session)`` is called, or ``over(error)`` where nobody accepts us any more.
    On one hub."""

    def __init__(
        self, renew: Callable[[], Carrier], error: Exception, *, back: Callable[[Carrier], None],
        over: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        """``error``: why the session has ended."""
        self.error = error
        """Why there is none now."""
        self._renew = renew
        self._back = back
        self._over = over
        self._closed = False
        self._greenlet = gevent.spawn(self._dial)

    def close(self) -> None:
        self._closed = True
        if gevent.getcurrent() is not self._greenlet:
            self._greenlet.kill(block=False)

    def _dial(self) -> None:
        pause = 0.05
        while not self._closed:
            try:
                session = self._renew()
            except FrameworkError as error:
                self.error = error
                if isinstance(error, REFUSALS):
                    self._over(error)
                    return
            else:
                self._back(session)
                return
            gevent.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)
