"""Cuts long work on the hub into slices, so that timers, heartbeats and all other clients run between them."""

from __future__ import annotations

import time
from collections.abc import Callable

from gevent import get_hub

_SLICE_SECONDS = 0.001
_ROUND_SECONDS = 0.01
"""What all that have long work take together before the loop has its round: each gets less when they are many."""
_waiting = 0


def next_round() -> None:
    """Block the greenlet until the loop has looked at its timers and sockets once. After ``gevent.sleep(0)`` it has not:
    it runs up to fifty greenlets that are ready, however long each takes, or one of them fifty times."""
    global _waiting  # noqa: PLW0603
    hub = get_hub()
    _waiting += 1
    try:
        hub.wait(hub.loop.idle(priority=hub.loop.MAXPRI))
    finally:
        _waiting -= 1


def soon(call: Callable[[], None]) -> None:
    """Call it on the hub in the loop's next round."""

    def ring() -> None:
        watcher.close()
        call()

    loop = get_hub().loop
    watcher = loop.idle(priority=loop.MAXPRI)
    watcher.start(ring)


class Slices:
    """For one greenlet: ``breathe`` again and again while it works."""

    def __init__(self, *, awaited: bool = False) -> None:
        """``awaited``: others with long work wait for this one, so its slices are whole ones however many they are."""
        self._awaited = awaited
        self._since = time.monotonic()

    def breathe(self) -> None:
        """Let others run, if they have not for a while."""
        most = _SLICE_SECONDS if self._awaited else min(_SLICE_SECONDS, _ROUND_SECONDS / (_waiting + 1))
        if time.monotonic() - self._since > most:
            next_round()
            self._since = time.monotonic()
