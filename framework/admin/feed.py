"""Server-sent events for the page: the handlers that have changed since a client heard of them, and what runs and fails."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import gevent
import msgspec

from framework.admin.latest import Latest
from framework.admin.requests import EVENTS, Answer, Refused
from framework.admin.snapshot import Snapshot

EVERY = 1.0
"""Seconds between two events."""
READERS = 20
"""Clients at a time: each has a connection for as long as it likes, and others must find one."""
LONGEST = 3600.0
"""Seconds of one answer; a page that is still there asks again."""
_UNSEEN = ("slow", "waits", "busy", "waited", "recent_calls", "recent_waits", "published", "started", "topic", "channel",
           "rate_seconds")  # fmt: skip
"""What the page makes nothing of."""


class Feed:
    """Its clients share what is made for one of them."""

    def __init__(self, latest: Latest) -> None:
        self._latest = latest
        self._readers = 0
        self._rows: dict[str, bytes] = {}
        self._rest = b""
        self._made_at = 0.0

    def answer(self) -> Answer:
        """Raises Refused when there are too many clients."""
        if self._readers >= READERS:
            raise Refused(503, f"{READERS} clients listen to events already")
        return Answer(200, EVENTS, self._events())

    def _events(self) -> Iterator[bytes]:
        """A client that does not read is given up by the server's patience; no more than one event waits for it."""
        self._readers += 1
        try:
            known: dict[str, bytes] = {}
            until = time.monotonic() + LONGEST
            while time.monotonic() < until:
                self._make()
                changed = [row for name, row in self._rows.items() if known.get(name) is not row]
                gone = [name for name in known if name not in self._rows]
                known = dict(self._rows)
                yield b'data: {"handlers":[%b],"gone":%b,%b}\n\n' % (b",".join(changed), msgspec.json.encode(gone), self._rest)
                gevent.sleep(EVERY)
        finally:
            self._readers -= 1

    def _make(self) -> None:
        if (now := time.monotonic()) - self._made_at < EVERY / 2:
            return
        self._made_at = now
        snapshot = self._latest()
        before, self._rows = self._rows, {}
        for row in self._latest.handlers():
            name, made = row["handler"], msgspec.json.encode({key: row[key] for key in row if key not in _UNSEEN})
            old = before.get(name)
            self._rows[name] = old if old == made else made  # that very object: who has it needs no other
        rest = {name: snapshot[name] for name in ("at", "processes", "running", "failures")} | {"nodes": _nodes(snapshot)}
        self._rest = msgspec.json.encode(rest)[1:-1]


def _nodes(snapshot: Snapshot) -> Sequence[dict[str, Any]]:
    """The connections by node: a thousand handlers have thousands."""
    sums: dict[str, Counter[str]] = {}
    for row in snapshot["connections"]:
        sums.setdefault(row["node"], Counter()).update(
            connections=int(not row["away"]), granted=row["granted"], in_flight=row["in_flight"], unsent=row["unsent"]
        )
    return [{"node": node, **counts} for node, counts in sorted(sums.items())]
