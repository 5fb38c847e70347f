"""A connection to JetStream whose session has ended while calls run: another session is dialled, by which they can be settled.

JetStream knows a message by the subject of its acknowledgement, whoever sends that, and its lease goes on meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import gevent

from framework.errors import REFUSALS, FrameworkError
from framework.observe import hublog
from framework.transports.nats.carrier import Carrier

log = hublog.get(__name__)
LONGEST_PAUSE = 1.0
"""Seconds between two dials."""


class Away:
    """Dials at once, and again and again, also where nobody accepts us: a server may be told of its users late. Then
    ``back(session)`` is called. On one hub."""

    def __init__(self, renew: Callable[[], Carrier], error: Exception, *, back: Callable[[Carrier], None]) -> None:
        """``error``: why the session has ended."""
        self.error = error
        """Why there is none now."""
        self._renew = renew
        self._back = back
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
                if isinstance(error, REFUSALS) and str(error) != str(self.error):
                    log.warning("%s", error)
                self.error = error
            else:
                self._back(session)
                return
            gevent.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)
