"""Calls by timer the handlers that have something to do, and no others: thousands of idle handlers cost nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from framework.handler import HandlerSpec
from framework.observe import hublog

log = hublog.get(__name__)


class Beating(Protocol):
    """What is called: ``consumer.Consumer``."""

    spec: HandlerSpec
    awake: bool

    @property
    def at_rest(self) -> bool: ...

    def tick(self, now: float) -> None: ...

    def keep_leases(self, now: float) -> None: ...


class Pulse:
    """Of one hub, whose timers call ``tick`` and ``keep_leases``."""

    def __init__(self) -> None:
        self._awake: dict[Beating, None] = {}
        self._ticked_at = time.monotonic()

    def rouse(self, one: Beating) -> float:
        """Call ``one`` from now on, until it is at rest after a tick; returns when the last tick was."""
        self._awake[one] = None
        return self._ticked_at

    def tick(self) -> None:
        self._ticked_at = now = time.monotonic()
        for one in self._each(lambda one: one.tick(now)):
            if one.at_rest:
                one.awake = False
                del self._awake[one]

    def keep_leases(self) -> None:
        now = time.monotonic()
        self._each(lambda one: one.keep_leases(now))

    def _each(self, work: Callable[[Beating], None]) -> list[Beating]:
        """The hub would print an exception and forget it, and for one handler's fault all would stand still.

        Returns those that did not fail."""
        done = []
        for one in list(self._awake):
            try:
                work(one)
                done.append(one)
            except Exception:
                log.exception("handler %s: a timer failed; this is a bug", one.spec.name)
        return done
