"""The hub of a native thread: made only where its files can be opened, as libev ends the process where one cannot; and asked to
call something."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import gevent
from gevent import monkey
from gevent.hub import Waiter, _get_hub, get_hub

from framework.forked import Step, call_in_child

# the patched one is of a greenlet, not of a thread
_new_lock = monkey.get_original("_thread", "RLock")

_FILES = 8
"""What a hub opens (an epoll, an eventfd, a timerfd), and some more, which other code may open meanwhile."""


def begin() -> None:
    """Have a hub in this thread. Raises OSError where the process may open no more files."""
    if _get_hub() is None:
        with _Making.lock:
            _check_files()
            get_hub()


def call_on_hub(work: Callable[[], object]) -> None:
    """Have this thread's hub call ``work``, which must not raise; returns then. A sleep, however long, may end before the hub has
    read what has come, where it was at work for longer than that."""
    called = Waiter()

    def call() -> None:
        try:
            work()
        finally:
            called.switch(None)

    get_hub().loop.run_callback(call)
    called.get()


def guard() -> None:
    """Let no thread of this process make one in another way, whatever asks for it: a handler's `time.sleep` as well.

    It is raised there, and fails that one call, not the process with all that it has in flight."""
    plain: Any = gevent.config.loop

    class Loop(plain):  # type: ignore[misc]
        def __new__(cls, *args: object, **kwargs: object) -> Any:
            with _Making.lock:
                _check_files()
                return super().__new__(cls, *args, **kwargs)

    gevent.config.loop = Loop


class _Making:
    lock = _new_lock()
    """Of all threads: a hub is made of descriptors that no other one has counted on."""


# a thread that is not in the child may hold the other one
call_in_child(Step.THREADS, lambda: setattr(_Making, "lock", _new_lock()))


def _check_files() -> None:
    free: list[int] = []
    try:
        for _ in range(_FILES):
            free.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: raise the limit of open files (ulimit -n)") from None
    finally:
        for descriptor in free:
            os.close(descriptor)
