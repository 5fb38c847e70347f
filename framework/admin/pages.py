"""What the admin endpoint answers: health, metrics, the API. It knows HTTP only as a Request and an Answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from framework.admin.access import Access
from framework.admin.api import Api
from framework.admin.assets import PATHS, asset
from framework.admin.backlog import Backlog
from framework.admin.feed import Feed
from framework.admin.figures import Figures
from framework.admin.fresh import Breathe, Fresh
from framework.admin.latest import FRESH, Latest
from framework.admin.letters import Letters
from framework.admin.requests import METRICS, Answer, Refused, Request, as_json, as_text
from framework.admin.snapshot import Source
from framework.transports.contract import Transport

log = logging.getLogger(__name__)

CACHED = 0.5
"""Seconds, at least, for which metrics are not made anew."""
STRANGERS = 1000
"""Addresses of which it is remembered that they had no token: each is told of once."""


class Pages:
    """Of the worker that ``source`` tells of. ``opened()`` opens its brokers for whoever asks them here. On one hub."""

    def __init__(self, source: Source, opened: Callable[[], Sequence[Transport]], access: Access) -> None:
        self._access = access
        backlog = Backlog(opened)
        latest = Latest(source, backlog)
        self._health = Fresh(lambda _: source.health(), FRESH)
        """Beside the snapshot: that takes longer to make than who asks for health waits, where there are a thousand handlers."""
        self._metrics = Fresh(_metrics(Figures(latest, backlog)), CACHED)
        self._strangers: set[str] = set()
        api, letters, feed = Api(source, latest, access), Letters(backlog.transports, latest), Feed(latest)
        self._pages: dict[str, Callable[[Request], Answer]] = {
            "/livez": lambda _: _verdict(stuck(self._health())),
            "/readyz": lambda _: _verdict(unready(self._health())),
            "/metrics": lambda _: Answer(200, METRICS, self._metrics()),
            "/api/events": lambda _: feed.answer(),
            "/scale": api.scale,
            **letters.paths,
            **api.paths,
        }
        self._changes = {**api.changes, **letters.changes}
        api.tell_of([*self._pages], [*self._changes])

    def answer(self, request: Request) -> Answer:
        try:
            asked_for_asset = request.path in PATHS and request.reads
            self._access.check(request, asset=asked_for_asset)
            return asset(request.path) if asked_for_asset else self._answer(request)
        except Refused as refused:
            self._tell_of(request, refused)
            api = request.path.startswith(("/api", "/scale"))
            return as_json({"error": str(refused)}, refused.status) if api else as_text(str(refused), refused.status)

    def _answer(self, request: Request) -> Answer:
        if request.path in self._changes and not request.reads:
            if request.method != "POST":
                raise Refused(405, "only POST")
            self._access.check_change(request)
            return self._changes[request.path](request)
        if request.path not in self._pages:
            if request.path in self._changes:
                raise Refused(405, "only POST")
            raise Refused(404, f"there is no such page: there are /, {', '.join(self._pages)}")
        if not request.reads:
            raise Refused(405, "only GET and HEAD")
        return self._pages[request.path](request)

    def _tell_of(self, request: Request, refused: Refused) -> None:
        """Once for each address: it may be somebody who tries tokens."""
        if refused.status == 401 and request.remote not in self._strangers and len(self._strangers) < STRANGERS:
            self._strangers.add(request.remote)
            log.warning("admin: %s asked for %.99r without the right token; this is said once", request.remote, request.path)


def _metrics(figures: Figures) -> Callable[[Breathe], bytes]:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return lambda breathe: figures.text(breathe).encode() + generate_latest(registry)


def stuck(processes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why only new processes would help: of several the others go on, as long as one does."""
    found = [one["stuck"] for one in processes]
    return [words for some in found for words in some] if all(found) else []


def unready(processes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why no messages should be counted on to be handled: no process is ready."""
    found = [one["unready"] for one in processes]
    return [words for some in found for words in some] or ["no process runs"] if all(found) else []


def _verdict(reasons: Sequence[str]) -> Answer:
    return as_text("\n".join(reasons), 503) if reasons else as_text("ok")
