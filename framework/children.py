"""Child processes of native threads, in a process that gevent has patched: refused before they start.

Gevent learns how a child ended from the main thread's loop, which reaps them all: another thread's ``subprocess``, ``os.fork`` or
``multiprocessing`` started its child, and only then failed. The message was delivered again, and the child started again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent.os
import gevent.subprocess

WORDS = (
    "a thread cannot start a process in a worker that gevent has patched, and none was started: "
    'give the handler slots="process", or the default "greenlet", in which subprocess yields'
)


def install() -> None:
    """Idempotent."""
    plain = gevent.os.fork_and_watch
    if plain.__module__ == __name__:
        return

    def fork_and_watch(
        callback: Callable[[Any], object] | None = None,
        loop: Any = None,
        ref: bool = False,
        fork: Callable[[], int] = gevent.os.fork_gevent,
    ) -> int:
        if not (loop or gevent.get_hub().loop).default:
            raise RuntimeError(WORDS)
        return int(plain(callback, loop, ref, fork))

    gevent.os.fork_and_watch = gevent.subprocess.fork_and_watch = fork_and_watch
