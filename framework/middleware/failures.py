"""The last failures of one handler, for who looks at a worker while it runs. No body of a message is kept, and no frame."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from framework.message import Message
from framework.observe.logging import encodable, scrub

KEPT = 20
"""Failures of a handler, the latest."""
_OURS = (str(Path(__file__).parents[1]) + "/", "src/gevent/")

Note = Callable[..., None]
"""``note(message, words, what, error=None, messages=1)``; see ``Failures.note``."""


class Failure(NamedTuple):
    """One failed call."""

    at: float
    """Seconds since 1970."""
    id: str
    attempt: int
    node: str
    messages: int
    """How many were in the call."""
    error: str
    """The exception in one line."""
    where: str
    """``file:line in function``, the app's innermost frame; empty where that is not known."""
    became: str
    """``requeued`` or ``dead``."""


class Failures:
    """Written where calls are made, read from any thread."""

    def __init__(self) -> None:
        self.last: deque[Failure] = deque(maxlen=KEPT)
        self.count = 0

    def note(self, message: Message, words: str, became: str, error: BaseException | None = None, messages: int = 1) -> None:
        """``message`` has failed with ``error``, which is ``words`` in one line."""
        self.count += 1
        self.last.append(
            Failure(
                time.time(), message.id.decode(errors="replace"), message.attempts, message.node, messages, scrub(words),
                where_raised(error), became,
            )
        )  # fmt: skip


def ignore(*_: Any, **__: Any) -> None:
    """Where nobody looks."""


def where_raised(error: BaseException | None) -> str:
    """The innermost frame of the app: an app's exception may fail when it is looked at."""
    try:
        trace, found = error and error.__traceback__, None
        while trace:
            if not trace.tb_frame.f_code.co_filename.startswith(_OURS):
                found = trace
            trace = trace.tb_next
        if not found:
            return ""
        code = found.tb_frame.f_code
    except Exception:
        return ""
    return encodable(f"{code.co_filename}:{found.tb_lineno} in {code.co_name}")
