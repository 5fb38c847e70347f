"""Writes to the log from where nothing may be waited for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from gevent import monkey

_start_new_thread = monkey.get_original("_thread", "start_new_thread")


def log_in_thread(say: Callable[..., object], *words: object) -> None:
    """``say(*words)`` in a native thread of its own: what is stuck may hold a lock of the log. Nothing is said where no thread is
    to be had."""
    with suppress(RuntimeError):
        _start_new_thread(say, words)
