"""What is wrong with this nsqd now, part by part, as /ping says it; and a restart for greenlets that nothing goes on without."""

from __future__ import annotations

import sqlite3
import traceback
from collections.abc import Callable
from pathlib import Path

import gevent
from gevent import Greenlet

from framework.errors import FrameworkError

_AGAIN_SECONDS = 1.0
_MOST_WORDS = 20


class Health:
    """The parts that failed when they were last tried."""

    def __init__(self, log: Callable[[str, str], None], folder: Path) -> None:
        """``folder`` is where the data is: errors of the disk name it."""
        self._log = log
        self._folder = folder
        self._wrong: dict[str, str] = {}
        self._said: dict[str, set[str]] = {}
        """What was logged of each of them: a disk may fail in turns, at the write and at the look at it."""

    def fails(self, part: str, error: Exception) -> None:
        """``part`` is a sentence without its reason. The same is logged once, however often it is tried."""
        expected = isinstance(error, (OSError, sqlite3.Error, FrameworkError))
        words = f"{part} - {self._folder}: {error}" if expected else f"{part} - {error!r}"
        self._wrong[part] = words
        said = self._said.setdefault(part, set())
        if words not in said and len(said) < _MOST_WORDS:
            said.add(words)
            self._log("ERROR", words)
            if not expected:
                self._log("ERROR", "".join(traceback.format_exception(error)).rstrip())

    def works(self, part: str) -> None:
        if self._wrong:
            self._wrong.pop(part, None)
            self._said.pop(part, None)

    @property
    def wrong(self) -> str:
        """What is wrong, "" for nothing."""
        return next(iter(self._wrong.values()), "")

    def supervise(self, part: str, run: Callable[[], None]) -> Greenlet:
        """A greenlet that runs it, and runs it again whenever an exception has ended it."""

        def keep_running() -> None:
            while True:
                try:
                    return run()
                except Exception as error:
                    self.fails(part, error)
                gevent.sleep(_AGAIN_SECONDS)

        return Greenlet.spawn(keep_running)
