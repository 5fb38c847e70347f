"""How events get to Sentry: by a native thread of its own, so that no hub waits for an endpoint; what fails is logged once."""

from __future__ import annotations

import logging
import os
import time
from _queue import SimpleQueue  # the C one, which nothing patches
from collections.abc import Callable
from typing import Any

import gevent
import urllib3
from gevent import monkey
from sentry_sdk.transport import HttpTransport
from sentry_sdk.worker import Worker

from framework.observe.answers import beginning_of

log = logging.getLogger(__name__)

PATIENCE = 5
"""Seconds that one request may take."""
LOOK = 0.01

# Patched, it would start a greenlet, on the hub of whichever thread reports first.
_start_new_thread = monkey.get_original("_thread", "start_new_thread")


class NativeThread(Worker):
    """Runs what is submitted, in order. What it opens (sockets) belongs to that thread, so it lives until ``kill``."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pid: int | None = None
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    @property
    def is_alive(self) -> bool:
        return self._pid == os.getpid()

    def start(self) -> None:
        """Again in a forked child: the thread, and what was queued, are the parent's."""
        if not self.is_alive:
            self._queue, self._pid = SimpleQueue(), os.getpid()
            _start_new_thread(self._run, (self._queue,))

    def submit(self, callback: Callable[[], None]) -> bool:
        self.start()
        if self.full():
            return False
        self._queue.put(callback)
        return True

    def full(self) -> bool:
        return self._queue.qsize() >= self._size

    def flush(self, timeout: float, callback: Callable[[int, float], None] | None = None) -> None:
        if not self.is_alive:
            return
        done: list[bool] = []
        self._queue.put(lambda: done.append(True))
        until = time.monotonic() + timeout
        while not done and time.monotonic() < until:
            time.sleep(LOOK)  # on a hub it is gevent's, and others go on

    def kill(self) -> None:
        if self.is_alive:
            self._queue.put(None)
            self._pid = None

    def _run(self, queue: SimpleQueue[Callable[[], None] | None]) -> None:
        try:
            while (callback := queue.get()) is not None:
                try:
                    callback()
                except Exception:
                    log.debug("what Sentry was to be told is lost", exc_info=True)
        finally:
            hub = gevent.hub._get_hub()  # made by what patched sockets are used here
            if hub is not None:
                hub.destroy(destroy_loop=True)


class Transport(HttpTransport):
    """Says once that Sentry cannot be reached, and once that it can again; tries nothing twice."""

    TIMEOUT = PATIENCE
    _down = False

    def _create_worker(self, options: dict[str, Any]) -> Worker:
        return NativeThread(options["transport_queue_size"])

    def _get_pool_options(self) -> dict[str, Any]:
        return {**super()._get_pool_options(), "retries": urllib3.Retry(0)}  # each further one would be a log line of urllib3's

    def _request(self, method: str, endpoint_type: Any, body: Any, headers: Any) -> urllib3.BaseHTTPResponse:
        """The SDK reads an answer whole, and limits the time for each packet: one without an end took all memory, or all time."""
        with gevent.Timeout(PATIENCE, TimeoutError("no whole answer in time")):
            answer = self._pool.request(
                method, self._auth.get_api_url(endpoint_type), body=body, headers=headers, preload_content=False
            )
            return urllib3.HTTPResponse(beginning_of(answer), answer.headers, answer.status)

    def _handle_response(self, response: Any, envelope: Any) -> None:
        super()._handle_response(response=response, envelope=envelope)
        if 200 <= response.status < 300 and self._down:
            self._down = False
            log.info("Sentry takes events again")

    def on_dropped_event(self, reason: str) -> None:
        if not self._down and (reason == "network" or reason.startswith("status_")):
            self._down = True
            log.warning("Sentry does not take events (%s); what comes meanwhile is not kept, and the workers go on", reason)
        super().on_dropped_event(reason)
