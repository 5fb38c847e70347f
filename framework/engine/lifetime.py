"""Starts and stops the middleware of a process that calls handlers: each object once, whatever it is declared for."""

from __future__ import annotations

import time
from collections.abc import Iterable

import gevent
from gevent.event import Event
from gevent.util import wrap_errors
from greenlet import GreenletExit  # type: ignore[import-untyped]

from framework import hooks
from framework.engine.stopping import Stop
from framework.errors import BadHandler
from framework.handler import HandlerSpec
from framework.hooks import Middleware
from framework.middleware.retry import describe
from framework.observe import hublog

log = hublog.get(__name__)

LAST = 1.0
"""Seconds that ``stop`` has at least, when the time to drain is over."""


class Lifetime:
    """Of the middleware of ``handlers``, as far as it has anything to start or stop."""

    def __init__(self, handlers: Iterable[HandlerSpec]) -> None:
        found = hooks.each_once(one for spec in handlers for one in spec.middleware)
        self._middleware = [one for one in found if hooks.overridden(one, "start") or hooks.overridden(one, "stop")]
        self._started: list[Middleware] = []

    def start(self) -> None:
        """In the order in which they are declared. Raises BadHandler for the first that fails, and starts no other then."""
        for one in self._middleware:
            try:
                one.start()
            except (GreenletExit, KeyboardInterrupt):  # the worker is told to stop before it has started
                raise
            except BaseException as error:
                raise BadHandler(f"middleware {hooks.name_of(one)} does not start: {describe(error)}") from error
            self._started.append(one)

    def stop(self) -> None:
        """Those that have started, in the reverse order. One that fails is logged."""
        while self._started:
            one = self._started.pop()
            try:
                one.stop()
            except (GreenletExit, KeyboardInterrupt):
                log.warning(
                    "middleware %s: its stop() was given up, and those of %d others", hooks.name_of(one), len(self._started)
                )
                raise
            except BaseException:
                log.exception("middleware %s does not stop as it should", hooks.name_of(one))

    # -- on a hub, where others go on meanwhile

    def start_unless(self, stop: Stop, changed: Event) -> bool:
        """``start``; False when a stop came before all had started. ``changed`` is set when one may have come."""
        if not self._middleware:
            return True
        starting = gevent.spawn(wrap_errors(BadHandler, self.start))
        starting.rawlink(lambda _: changed.set())
        while not starting.ready() and not stop.times:
            changed.wait()
            changed.clear()
        starting.kill(timeout=LAST)
        if isinstance(starting.value, BadHandler):
            raise starting.value
        return starting.successful() and starting.value is None

    def stop_by(self, stop: Stop) -> None:
        """``stop``, for as long as handlers had to end; one that does not return keeps no worker from its end."""
        stopping, began = gevent.spawn(self.stop), time.monotonic()
        while not stopping.ready() and time.monotonic() < max(stop.until, began + LAST):
            stopping.join(0.05)
        stopping.kill(timeout=LAST)
