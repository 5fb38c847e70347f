"""The paths below /api: the snapshot by its parts, and actions. All that the page shows and does, it shows and does by these."""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent

from framework.admin import actions
from framework.admin.access import Access
from framework.admin.latest import Latest
from framework.admin.requests import Answer, Refused, Request, as_json, read, tell
from framework.admin.snapshot import Source, rows_of
from framework.errors import FrameworkError, WrongUse
from framework.version import VERSION

PATIENCE = 1.0
"""Seconds that an answer waits for an action to take effect."""
ANSWERS = 2.0
"""Seconds that /scale waits for the brokers: KEDA waits for 3, and beside a thousand handlers this thread is busy at times."""
LOOK = 0.02
PARTS = ("running", "failures", "connections")


class Api:
    """Of one worker."""

    def __init__(self, source: Source, latest: Latest, access: Access) -> None:
        self._source = source
        self._latest = latest
        self._access = access
        self.paths: dict[str, Callable[[Request], Answer]] = {
            "/api": self._index,
            "/api/snapshot": lambda _: as_json(latest()),
            "/api/processes": lambda _: as_json(latest()["processes"]),
            "/api/handlers": self._handlers,
            **{f"/api/{part}": self._part for part in PARTS},
        }
        self.changes: dict[str, Callable[[Request], Answer]] = {"/api/actions": self._act}
        self._known: dict[str, list[str]] = {}

    def tell_of(self, reads: list[str], changes: list[str]) -> None:
        """All paths that there are."""
        self._known = {"get": sorted(reads), "post": sorted(changes)}

    def _index(self, _: Request) -> Answer:
        return as_json({"version": VERSION, "read_only": self._access.read_only, **self._known, "actions": actions.ACTIONS})

    def _handlers(self, request: Request) -> Answer:
        name = self._named(request)
        return as_json([row for row in self._latest.handlers() if not name or row["handler"] == name])

    def _part(self, request: Request) -> Answer:
        kind = request.path.rpartition("/")[2]
        return as_json(list(rows_of(self._latest(), kind, self._named(request))))

    def _named(self, request: Request) -> str:
        """The handler that is asked for; empty for all. Raises Refused for one that is not here."""
        name = request.query.get("handler", "")
        if name and self._latest.named(name) is None:
            known = sorted(row["handler"] for row in self._latest()["handlers"])
            raise Refused(404, f"there is no handler {name!r} here: name one of {', '.join(known[:20])}")
        return name

    def scale(self, request: Request) -> Answer:
        """For KEDA's metrics-api: what brokers could deliver now for a handler, and what is in flight."""
        name = self._named(request)
        if not name:
            raise Refused(400, "say which handler: /scale?handler=topic/channel")
        # Of this moment: who scales by it asks every half minute or so, and what that has found out is for nobody else.
        value = self._latest.work_for(name, ANSWERS)
        if value is None:
            raise Refused(503, f"not known: the brokers have not answered within {ANSWERS:g} s")
        return as_json({"value": value})

    def _act(self, request: Request) -> Answer:
        known = {row["handler"] for row in self._latest()["handlers"]}
        try:
            command = actions.checked(read(request), known)
            self._source.act(command)
        except (WrongUse, FrameworkError) as error:
            raise Refused(400, str(error)) from None
        words = actions.in_words(command)
        tell(request, words)
        return as_json({"done": words} if self._takes_effect(command) else {"done": words, "pending": True})

    def _takes_effect(self, command: actions.Command) -> bool:
        """Waits a moment for it: the hub of a worker that is busy has to turn first, and one that is blocked will later."""
        until = time.monotonic() + PATIENCE
        while True:
            gevent.sleep(LOOK)
            self._latest.forget()
            rows = [row for row in self._latest()["handlers"] if command["handler"] in (None, row["handler"])]
            if all(actions.has_effect(command, row) for row in rows):
                return True
            if time.monotonic() > until:
                return False
