"""The way to each node, shared by all handlers of a worker: how many of them dial it at once, and which one dials while it is
away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

import gevent
from gevent.lock import Semaphore

from framework.engine import backoff

AT_ONCE = 32
"""Dials of one node that are under way at once. A dial has few seconds: with thousands of them at once each would need more."""
LOST = 60.0
"""Seconds since a node was last reached in which it is dialled often: most nodes that are lost are being restarted."""


class Way:
    """One node. While it is away one handler dials it for all, and the others wait until that one gets through.

    So a thousand handlers find within half a second that a node is back, for the price of one dial at a time.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        """Why the last dial did not reach it; None: it did, or there was none yet."""
        self._failures = 0
        self._next = 0.0
        self._seen = time.monotonic()
        self._some = Semaphore(AT_ONCE)
        self._one = Semaphore(1)

    @contextmanager
    def dialling(self) -> Iterator[None]:
        """Wait until the caller may dial. In the block, say by ``reached`` or ``missed`` what came of it, if it dialled."""
        while True:
            away = self.error is not None
            with self._one if away else self._some:
                if away:
                    gevent.sleep(max(0.0, self._next - time.monotonic()))
                if away == (self.error is not None):  # else it came back, or went away, while this one waited
                    yield
                    return

    def seen(self) -> None:
        """A connection to it stood until now."""
        self._seen = time.monotonic()

    def reached(self) -> None:
        """It answered, whatever it said."""
        self.error = None
        self._failures = 0
        self.seen()

    def missed(self, error: Exception) -> None:
        """It did not answer."""
        self.error = error
        now = time.monotonic()
        if now >= self._next:  # not one of many that dialled together
            self._failures += 1
            self._next = now + backoff.reconnect_delay(self._failures, often=now - self._seen < LOST)


class Ways:
    """The ways of the nodes of one transport, each kept for as long as a handler uses it."""

    def __init__(self) -> None:
        self._ways: WeakValueDictionary[str, Way] = WeakValueDictionary()

    def __getitem__(self, node: str) -> Way:
        way = self._ways.get(node)
        if way is None:
            way = self._ways[node] = Way()
        return way
