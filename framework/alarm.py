"""Timers that can be set again, on the hub's own loop: thousands of them cost nothing while they wait.

One of gevent's that is started a second time goes on with what was left when it stopped: nothing, once it has rung.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from gevent import get_hub

_SOONEST = 0.001


class Alarm:
    """Calls ``ring`` (on the hub: it must not block) once the time it was set to has come."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: Any = None
        self.when = math.inf
        """Monotonic seconds."""

    def set(self, when: float) -> None:
        """Ring at ``when`` (monotonic seconds), or earlier if it was set so already."""
        if when >= self.when:
            return
        self.cancel()
        self.when = when
        self._timer = get_hub().loop.timer(max(_SOONEST, when - time.monotonic()))
        self._timer.start(self._fire, update=True)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.close()
            self._timer = None
        self.when = math.inf

    def _fire(self) -> None:
        self.cancel()
        self._ring()


class Countdown:
    """Calls once on the hub, ``seconds`` after each ``start``."""

    def __init__(self, loop: Any, seconds: float) -> None:
        self._timer = loop.timer(0.0, max(_SOONEST, seconds))

    @property
    def active(self) -> bool:
        return bool(self._timer.active)

    def start(self, call: Callable[..., None], *arguments: object) -> None:
        """Anew, whatever was left of the last time. ``call`` must not block."""
        self._timer.again(self._fire, call, arguments)

    def stop(self) -> None:
        self._timer.stop()

    def close(self) -> None:
        self._timer.close()

    def _fire(self, call: Callable[..., None], arguments: tuple[object, ...]) -> None:
        self._timer.stop()
        call(*arguments)
