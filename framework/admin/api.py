"""The paths below /api: the snapshot by its parts, and actions. All that the page shows and does, it shows and does by these."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from framework.admin import actions
from framework.admin.access import Access
from framework.admin.latest import Latest
from framework.admin.requests import Answer, Refused, Request, as_json
from framework.admin.snapshot import Source, rows_of
from framework.errors import FrameworkError, WrongUse
from framework.version import VERSION

log = logging.getLogger(__name__)

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

    def _index(self, _: Request) -> Answer:
        return as_json(
            {"version": VERSION, "read_only": self._access.read_only, "get": sorted(self.paths), "post": sorted(self.changes),
             "actions": actions.ACTIONS}
        )  # fmt: skip

    def _handlers(self, request: Request) -> Answer:
        name = self._named(request)
        return as_json([row for row in self._latest.handlers() if not name or row["handler"] == name])

    def _part(self, request: Request) -> Answer:
        kind = request.path.rpartition("/")[2]
        return as_json(list(rows_of(self._latest(), kind, self._named(request))))

    def _named(self, request: Request) -> str:
        """The handler that is asked for; empty for all. Raises Refused for one that is not here."""
        name = request.query.get("handler", "")
        if name and name not in (known := {row["handler"] for row in self._latest()["handlers"]}):
            raise Refused(404, f"there is no handler {name!r} here: name one of {', '.join(sorted(known)[:20])}")
        return name

    def _act(self, request: Request) -> Answer:
        known = {row["handler"] for row in self._latest()["handlers"]}
        try:
            command = actions.checked(read(request), known)
            self._source.act(command)
        except (WrongUse, FrameworkError) as error:
            raise Refused(400, str(error)) from None
        self._latest.forget()
        words = actions.in_words(command)
        tell(request, words)
        return as_json({"done": words})


def read(request: Request) -> object:
    """The JSON of its body. Raises Refused."""
    try:
        return msgspec.json.decode(request.body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None


def tell(request: Request, words: str) -> None:
    """Have the log say who has done what."""
    log.info("admin: %s: %s", request.remote, words)
