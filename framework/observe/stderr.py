"""A stderr that never blocks its writers: a native thread writes the lines, and keeps those that a full disk does not take.

What is not taken in time is dropped and counted.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gevent import monkey

from framework.observe import logfile
from framework.observe.appending import append
from framework.observe.background import SIZE, Background

_STDERR = 2
_FLUSH_SECONDS = 2.0
"""How long an end waits for a stderr that nobody reads."""
_LAST_WORDS = 1.0
_ROOM = 16 * 1024 * 1024
"""Characters that wait, at most: a traceback may have 64 Ki, and 10,000 of them would be more than a container has."""
_PAUSE = 0.25
"""Seconds between two tries to write."""
_PASSES = {errno.ENOSPC, errno.EDQUOT}
"""Errors of a stderr that somebody else has opened, after which it may be written again."""
_sleep = monkey.get_original("time", "sleep")
_new_rlock = monkey.get_original("_thread", "RLock")


class Stderr(io.TextIOBase):
    """Takes text from any thread, greenlet or callback of a hub."""

    def __init__(self, prefix: str, size: int = SIZE) -> None:
        """``prefix`` begins the lines of its own, those that say what was dropped, until they are ``say_as``."""
        self.form: Callable[[str], str] = lambda words: f"{prefix}{words}\n"
        self._queue = Background(self._write, self._lost, join="".join, size=size, room=_ROOM, weigh=len)
        self._process = os.getpid()
        self._lock = _new_rlock()
        self._begun = ""
        """A line that has no end yet: another process's could come before that."""
        self._error: OSError | None = None
        """Why it could not be written, until that is said."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):  # by this click tells it from a stream of bytes
            raise TypeError(f"a str is written to stderr, not {type(text).__name__}")
        if os.getpid() != self._process:  # a forked child has no hub to keep turning, and often ends by os._exit
            write_now(text)
            return len(text)
        end = text.rfind("\n") + 1
        with self._lock:
            if end:
                self._queue.put(self._begun + text[:end])
                self._begun = ""
            self._begun += text[end:]
        return len(text)

    def flush(self) -> None:
        """Have a line written that has no end yet."""
        if self._begun and os.getpid() == self._process:
            with self._lock:
                begun, self._begun = self._begun, ""
                self._queue.put(begun)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(_STDERR)

    def fileno(self) -> int:
        return _STDERR

    def drain(self, seconds: float) -> bool:
        """Wait until all of it is written; False: it took longer. It blocks the thread with its hub: for an exit."""
        self.flush()
        return self._queue.flush(seconds)

    # -- in the thread of the queue

    def _write(self, text: str) -> None:
        left, error = write_now(text)
        if error is None or not _may_pass(error):
            if not self._queue.drops:  # else it is the reason, which is said later
                self._error = None
            return
        since = time.monotonic()
        while error is not None:
            self._error = error
            _sleep(_PAUSE)  # SIGUSR1 may bring another file meanwhile
            left, error = append(_STDERR, left)
        seconds = time.monotonic() - since
        self._write(self.form(f"the log could not be written for {seconds:.1f} s: {_words(self._error)}"))

    def _lost(self, count: int) -> str:
        error, self._error = self._error, None
        why = f"it could not be written: {_words(error)}" if error is not None else "nobody read it"
        return self.form(f"{count} pieces of this log were dropped while {why}")


def _may_pass(error: OSError) -> bool:
    """A file of our own may be mended, or moved, and a pipe there be read again."""
    return error.errno in _PASSES or logfile.path() is not None


def _words(error: OSError | None) -> str:
    return error.strerror or str(error) if error is not None else ""


def write_now(text: str) -> tuple[bytes, OSError | None]:
    """Block until it is written, and see ``append``.

    On the descriptor itself: an interpreter that ends beside a thread in ``sys.stderr`` crashes.
    """
    return append(_STDERR, text.encode(errors="backslashreplace"))


@contextmanager
def unblocked(prefix: str, *, size: int = SIZE) -> Iterator[None]:
    """Let nothing that is written to ``sys.stderr`` block its writer in here; at the end all is written, if somebody reads."""
    plain = sys.stderr
    stream = sys.stderr = Stderr(prefix, size)
    try:
        yield
    finally:
        stream.drain(_FLUSH_SECONDS)
        sys.stderr = plain


def say_as(form: Callable[[str], str]) -> None:
    """How lines of its own look from now on: ``form`` makes one of words, in any thread."""
    if isinstance(sys.stderr, Stderr):
        sys.stderr.form = form


def last_words() -> None:
    """Before ``os._exit``: have written what can be, within a second. It blocks; from any thread."""
    if isinstance(sys.stderr, Stderr):
        sys.stderr.drain(_LAST_WORDS)
