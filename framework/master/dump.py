"""Writes where every greenlet and thread of this process is to the log, whatever the hub is doing."""

from __future__ import annotations

import faulthandler
import gc
import logging
import signal
import threading
import traceback
from collections import defaultdict
from itertools import chain, compress, islice, repeat, starmap
from typing import Any

from greenlet import greenlet  # type: ignore[import-untyped]

from framework.log_thread import log_in_thread

log = logging.getLogger(__name__)

MOST = 200
"""Different stacks that are shown."""
Frame = tuple[str, int, str]
"""File, line, function."""
FROZEN: int = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
"""For a process of which nothing has been heard for long, from its master alone. macOS has no SIGRTMAX."""


def on_signal() -> None:
    """Have FROZEN write where the threads are, by the system's handler: also while native code holds the GIL.

    That walks the frames of threads which run meanwhile, too, and then crashes sooner or later. So it is no signal that anybody
    sends to all processes of a service.
    """
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # it is for the master
    faulthandler.register(FROZEN, file=2, all_threads=True)


def write(why: str) -> None:
    """From any thread."""
    log_in_thread(log.warning, "%s; where all of it is:\n%s", why, text())


def text() -> str:
    """Greenlets that stand at the same place are one entry: thousands of slots may wait for their next message."""
    from framework.admin.where import of_greenlet, threads  # noqa: PLC0415

    names: dict[tuple[Frame, ...], list[str]] = defaultdict(list)
    named = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frames in threads().items():
        names[tuple(frames)].append(f"thread {named.get(ident, ident)}")
    for one in _greenlets():
        if frames := list(of_greenlet(one)):
            names[tuple(frames)].append(f"greenlet {getattr(one, 'name', '') or type(one).__name__}")
    entries = [f"{_words(who)}:\n{_stack(frames)}" for frames, who in islice(names.items(), MOST)]
    left = len(names) - len(entries)
    return "\n".join([*entries, f"and {left} more places"] if left else entries)


def _greenlets() -> list[Any]:
    """By one call of C: who holds all objects meanwhile keeps what the worker has done with, such as a file, from its end.

    No isinstance(): at that proxies run code, as Django's settings do, which raise where they are not configured. And no tee():
    it would be among the objects that it keeps.
    """
    twice = chain.from_iterable(map(repeat, chain.from_iterable(starmap(gc.get_objects, [()])), repeat(2)))
    return list(compress(twice, map(issubclass, map(type, twice), repeat(greenlet))))


def _words(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} times {names[0]}"


def _stack(frames: tuple[Frame, ...]) -> str:
    """The innermost last, as in a traceback."""
    return "".join(traceback.StackSummary.from_list([(*frame, None) for frame in reversed(frames)]).format())
