"""One nsqlookupd, asked for many handlers: where there are many, its list of all nodes answers for all of their topics."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gevent.lock import Semaphore

from framework.transports.nsq.http import Lookupd, Producer

CROWD = 16
"""Topics above which it is asked for everything it has, once for all, in place of each topic."""
FRESH = 0.5
"""Seconds for which the list of all nodes is as good as new."""


class Register:
    """What ``lookupd`` knows. Every method raises as ``Lookupd``'s do."""

    def __init__(self, lookupd: Lookupd) -> None:
        self.lookupd = lookupd
        self.address = lookupd.address
        self._topics: set[str] = set()
        self._nodes: Sequence[Producer] = ()
        self._by_topic: dict[str, list[Producer]] = {}
        self._asked_at = float("-inf")
        self._asking = Semaphore()

    def lookup(self, topic: str) -> Sequence[Producer]:
        """The nodes that have ``topic`` and are not tombstoned for it."""
        self._topics.add(topic)
        if len(self._topics) <= CROWD:
            return self.lookupd.lookup(topic).producers
        self._refresh(time.monotonic() - FRESH)
        return self._by_topic.get(topic, [])

    def everyone(self) -> set[str]:
        """Every node there is now, whatever its topics."""
        self._refresh(time.monotonic())
        return {one.node for one in self._nodes}

    def _refresh(self, since: float) -> None:
        """Ask, unless that was done at or after ``since``: of many who come at once one asks."""
        with self._asking:
            if self._asked_at < since:
                now = time.monotonic()
                self._nodes = self.lookupd.nodes()
                self._by_topic = _by_topic(self._nodes)
                self._asked_at = now


def _by_topic(nodes: Sequence[Producer]) -> dict[str, list[Producer]]:
    found: dict[str, list[Producer]] = {}
    for node in nodes:
        tombstoned = {topic for topic, gone in zip(node.topics, node.tombstones, strict=False) if gone}
        for topic in node.topics:
            if topic not in tombstoned:
                found.setdefault(topic, []).append(node)
    return found
