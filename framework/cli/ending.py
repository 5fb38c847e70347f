"""The end of a worker's process in bounded time: exit functions and threads of an app that hang do not hold it up for ever.

What it had is given back and written by then; nothing here waits for handlers, that is the supervisor's.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import NoReturn

from gevent import monkey

from framework.cli.exit_codes import Exit
from framework.observe import stderr
from framework.observe.background import Background

GRACE = 1.0
"""Seconds that exit functions and threads have in any case, and as much for the last words."""
STACK = 8
"""Lines of the stack that is shown, the innermost."""
_start_new_thread = monkey.get_original("_thread", "start_new_thread")
_sleep = monkey.get_original("time", "sleep")
_code: int = Exit.UNEXPECTED


def within(seconds: float, code: int) -> None:
    """End the process ``seconds`` and a grace from now, wherever it stands then, with ``code`` or what ``exit_code`` says."""
    exit_code(code)
    _start_new_thread(_end_late, (seconds + GRACE,))


def exit_code(code: int) -> None:
    """What it would end with by itself."""
    global _code  # noqa: PLW0603
    _code = code


def at_once(code: int) -> NoReturn:
    """From any thread, under the feet of all others."""
    stderr.last_words()
    os._exit(code)


def _end_late(seconds: float) -> None:
    _sleep(seconds)
    last = Background(_say, str)
    last.put(
        f"workers: {seconds:.1f} s after the worker's own end exit functions or threads of the app still run, so the process is "
        f"ended. It is at:\n{_where()}"
    )
    last.flush(GRACE)
    at_once(_code)


def _say(words: str) -> None:
    """In a thread of its own: perhaps nobody reads, or whoever hangs holds the stream."""
    stderr.write_now(words)
    sys.stdout.flush()


def _where() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)[-STACK:]) if frame else ""
