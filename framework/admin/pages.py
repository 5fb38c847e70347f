"""What the admin endpoint answers: /livez, /readyz, /metrics. It knows HTTP only as a path and a Host header."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from framework.admin import health
from framework.admin.backlog import Backlog
from framework.admin.figures import Figures
from framework.engine.supervisor import Supervisor
from framework.handler import HandlerSpec
from framework.transports.contract import Transport

CACHED = 0.5
"""Seconds, at least, for which metrics are not made anew: they take CPU of the process whose messages they count."""
SHARE = 0.1
"""The part of the time that making them may take, at most: of a thousand handlers they take 0.8 s."""
TRIES = 3
"""What is read changes meanwhile, and a set that does cannot be gone through."""
TEXT = "text/plain; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
_LOCAL = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")

Answer = tuple[int, str, bytes]
"""Status, content type, body."""


class Pages:
    """Of one worker. ``local``: it listens on loopback, where a page of a browser must not reach it by a name of its own."""

    def __init__(
        self, supervisor: Supervisor, handlers: Sequence[HandlerSpec], opened: Callable[[], Sequence[Transport]], *, local: bool
    ) -> None:
        self._supervisor = supervisor
        self._local = local
        self._registry = CollectorRegistry()
        self._registry.register(Figures(supervisor, Backlog(handlers, opened)))
        ProcessCollector(registry=self._registry)
        self._body = b""
        self._stale_at = 0.0
        self._pages: dict[str, Callable[[], Answer]] = {
            "/livez": lambda: _verdict(health.stuck(supervisor)),
            "/readyz": lambda: _verdict(health.unready(supervisor)),
            "/metrics": self._metrics,
        }

    def answer(self, method: str, path: str, host: str) -> Answer:
        if self._local and host and not _LOCAL.fullmatch(host):
            return 403, TEXT, b"this Host is not served here: use the address that --admin names\n"
        if path not in self._pages:
            return 404, TEXT, f"there is no such page: there are {', '.join(self._pages)}\n".encode()
        if method not in ("GET", "HEAD"):
            return 405, TEXT, b"only GET and HEAD\n"
        for _ in range(TRIES - 1):
            with suppress(RuntimeError):
                return self._pages[path]()
        return self._pages[path]()

    def _metrics(self) -> Answer:
        began = time.monotonic()
        if began > self._stale_at:
            self._body = generate_latest(self._registry)
            now = time.monotonic()
            self._stale_at = now + max(CACHED, (now - began) / SHARE)
        return 200, METRICS, self._body


def _verdict(reasons: Sequence[str]) -> Answer:
    return (503, TEXT, ("\n".join(reasons) + "\n").encode()) if reasons else (200, TEXT, b"ok\n")
