"""Hands how each message of a handler ended to the writer: where the histories are on, and in the worker only."""

from __future__ import annotations

from time import time
from typing import Any

from framework.handler import HandlerSpec
from framework.history.writer import Writer
from framework.hooks import Ending, Observer
from framework.message import Batch, Message
from framework.middleware.retry import describe, encodable
from framework.observe.logging import scrub

NONE = ("", "")
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
        writer = self._writer
        writer.entries.append((message.id, self._name, message.connection.node, message.attempts, outcome, error, began, time()))
        if writer.asleep:
            writer.ring()


def _told(error: BaseException | None) -> tuple[str, str]:
    """The class and the first line: an app's exception may fail when it is looked at."""
    if error is None:
        return NONE
    try:
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        lines = str(error).splitlines() or [""]
        return encodable(name), scrub(encodable(lines[0][:WORDS]))
    except Exception:
        return encodable(describe(error).partition(":")[0]), ""
