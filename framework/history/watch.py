"""Hands how each message of a handler ended to the writer: where the histories are on, and in the worker only."""

from __future__ import annotations

from time import time
from typing import Any

from framework.handler import HandlerSpec
from framework.history.rows import NONE, Entry, entries_of, run_of
from framework.history.writer import Writer
from framework.hooks import Ending, Finished, Observer
from framework.message import Batch, Message
from framework.middleware.retry import describe
from framework.observe.logging import encodable, scrub

WORDS = 300
"""Characters of what an exception says."""


class Watch(Observer):
    """That of one handler."""

    def __init__(self, spec: HandlerSpec, writer: Writer) -> None:
        self._name = spec.name
        self._writer = writer
        self._errors: dict[Message, tuple[str, str]] = {}
        """Of messages whose calls have failed, until they have ended."""

    def elsewhere(self) -> None:
        return None

    def start(self) -> None:
        """Here, and not where it is made: a thread does not live on in a forked child."""
        self._writer.begin()

    def failed(self, job: Any, error: BaseException | None, /) -> None:
        if isinstance(job, Message):
            self._errors[job] = _told(error)
        elif isinstance(job, Batch):
            if error is not None:
                self._errors.update(dict.fromkeys(job.messages, _told(error)))
            self._errors.update({message: _told(one) for message, one in job.outcomes.items()})

    def ended(self, message: Message, outcome: Ending, began: float, /) -> None:
        error = self._errors.pop(message, NONE) if self._errors else NONE
        self._writer.put((message.id, self._name, message.connection.node, message.attempts, outcome, error, began, time()))

    def finished(self, run: Finished, /) -> None:
        skipped = self._skipped(run) if self._errors else None
        packed = None if skipped or len(run.ids) == 1 else run_of(self._name, run)
        if packed is not None:
            self._writer.put(packed)
            return
        for entry in entries_of(self._name, run):
            self._writer.put(_with_error(entry, skipped[entry[0]]) if skipped and entry[0] in skipped else entry)

    def _skipped(self, run: Finished) -> dict[bytes, tuple[str, str]]:
        """Of those whose calls have raised, and that ended well: by Skip."""
        ids = set(run.ids)
        found = [one for one in self._errors if one.id in ids and one.attempts == run.attempts and one.node == run.node]
        return {one.id: self._errors.pop(one) for one in found}


def _with_error(entry: Entry, error: tuple[str, str]) -> Entry:
    id_, handler, node, attempt, outcome, _, started, ended = entry
    return id_, handler, node, attempt, outcome, error, started, ended


def _told(error: BaseException | None) -> tuple[str, str]:
    """The class and the first line: an app's exception may fail when it is looked at."""
    if error is None:
        return NONE
    try:
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        lines = str(error).splitlines() or [""]
        return encodable(name), encodable(scrub(lines[0])[:WORDS])
    except Exception:
        return encodable(describe(error).partition(":")[0]), ""
