"""Makes topics: those that are asked for while some are being made are made together, next. It speaks to no server itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic

import gevent
from gevent.lock import Semaphore

from framework.errors import FrameworkError

MOST = 100
"""Topics that are made together, at most."""
ROUTED = 3.0
"""Seconds in which a topic that was made is known to the name servers."""


class _Batch:
    def __init__(self) -> None:
        self.topics: dict[str, None] = {}
        self.made = False
        self.errors: Mapping[str, FrameworkError] = {}


class TopicMaker:
    """A broker makes one topic after the other, and writes all that it has down each time: the two thousand topics of a thousand
    handlers took it minutes."""

    def __init__(self, make: Callable[[Sequence[str]], Mapping[str, FrameworkError]]) -> None:
        """``make`` blocks, and returns why some of them cannot be made; it raises what is true of all."""
        self._make = make
        self._next = _Batch()
        self._one = Semaphore()

    def make(self, topic: str, *others: str) -> None:
        """Blocks until ``topic`` is made; those beside it are made as well, or not. Raises what ``make`` raises, or returns for
        it."""
        batch = self._next
        batch.topics.update(dict.fromkeys((topic, *others)))
        if len(batch.topics) >= MOST:
            self._next = _Batch()
        with self._one:
            if not batch.made:
                self._make_all(batch)
        if topic in batch.errors:
            raise batch.errors[topic]

    def _make_all(self, batch: _Batch) -> None:
        if self._next is batch:
            self._next = _Batch()
        batch.made = True
        try:
            batch.errors = self._make(list(batch.topics))
        except FrameworkError as error:
            batch.errors = dict.fromkeys(batch.topics, error)


def await_route(routed: Callable[[], bool]) -> None:
    """Until it is ``routed``, or for ``ROUTED`` seconds: a broker tells the name servers of a new topic behind its answer."""
    until, pause = monotonic() + ROUTED, 0.002
    while monotonic() < until and not routed():
        gevent.sleep(pause)
        pause = min(2 * pause, 0.25)
