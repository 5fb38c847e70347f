"""A stderr that never blocks its writers: a native thread writes the lines; what nobody reads in time is dropped and counted."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gevent import monkey

from framework.observe.background import SIZE, Background

_STDERR = 2
_FLUSH_SECONDS = 2.0
"""How long an end waits for a stderr that nobody reads."""
_LAST_WORDS = 1.0
_WHOLE = 4096
"""Bytes that a pipe takes in one piece (PIPE_BUF): lines of several processes do not mix."""
_poll = monkey.get_original("select", "poll")
_POLLOUT = 4


class Stderr(io.TextIOBase):
    """Takes text from any thread, greenlet or callback of a hub."""

    def __init__(self, prefix: str, size: int = SIZE) -> None:
        """``prefix`` begins the line that says how much was dropped."""

        def lost(count: int) -> str:
            return f"{prefix}{count} pieces of this log were dropped while nobody read it\n"

        self._queue = Background(write_now, lost, join="".join, size=size)
        self._process = os.getpid()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):  # by this click tells it from a stream of bytes
            raise TypeError(f"a str is written to stderr, not {type(text).__name__}")
        if os.getpid() == self._process:
            self._queue.put(text)
        else:  # a forked child has no hub to keep turning, and often ends by os._exit
            write_now(text)
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(_STDERR)

    def fileno(self) -> int:
        return _STDERR

    def drain(self, seconds: float) -> bool:
        """Wait until all of it is written; False: it took longer. It blocks the thread with its hub: for an exit."""
        return self._queue.flush(seconds)


def write_now(text: str) -> None:
    """Block until it is written. On the descriptor itself: an interpreter that ends beside a thread in ``sys.stderr`` crashes."""
    left = text.encode(errors="backslashreplace")
    with suppress(OSError):  # nothing to write to, or a full disk: it serves all the same
        while left:
            end = len(left) if len(left) <= _WHOLE else left.rfind(b"\n", 0, _WHOLE) + 1
            try:
                left = left[os.write(_STDERR, left[: end or _WHOLE]) :]
            except BlockingIOError:
                _await_room()


def _await_room() -> None:
    poll = _poll()
    poll.register(_STDERR, _POLLOUT)
    poll.poll()


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


def last_words() -> None:
    """Before ``os._exit``: have written what can be, within a second. It blocks; from any thread."""
    if isinstance(sys.stderr, Stderr):
        sys.stderr.drain(_LAST_WORDS)
