"""Asks once for many who ask the same at once, and keeps the answer for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from gevent.lock import Semaphore

Answer = TypeVar("Answer")

FRESH = 2.0
"""Seconds for which an answer is not asked for again."""


class Recent(Generic[Answer]):
    """``ask()`` blocks, and may raise: then the next one asks again."""

    def __init__(self, ask: Callable[[], Answer], *, fresh: float = FRESH) -> None:
        self._ask = ask
        self._fresh = fresh
        self._answer: Answer | None = None
        self._until = float("-inf")
        self._asking = Semaphore()

    def __call__(self) -> Answer:
        with self._asking:  # whoever comes while one asks has the same answer
            if self._answer is None or time.monotonic() >= self._until:
                self._answer = self._ask()
                self._until = time.monotonic() + self._fresh
            return self._answer
