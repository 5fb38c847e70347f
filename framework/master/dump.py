"""Writes where every greenlet and thread of this process is to the log, whatever the hub is doing."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import logging
import signal
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Iterator
from types import FrameType

from gevent import monkey
from greenlet import greenlet  # type: ignore[import-untyped]

log = logging.getLogger(__name__)

STACK = 50
"""Frames that are shown of each, the innermost."""
MOST = 200
"""Different stacks that are shown."""
_start_new_thread = monkey.get_original("_thread", "start_new_thread")


def on_signal() -> None:
    """Have SIGUSR2 write where the threads are, by the system's handler: also while native code holds the GIL."""
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)


def write(why: str) -> None:
    """From any thread. In one of its own: what is stuck may hold a lock of the log."""
    _start_new_thread(log.warning, ("%s; where all of it is:\n%s", why, text()))


def text() -> str:
    """Greenlets that stand at the same place are one entry: thousands of slots may wait for their next message."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, frame in itertools.chain(_threads(), _greenlets()):
        frames = list(itertools.islice(traceback.walk_stack(frame), STACK))
        names["".join(traceback.StackSummary.extract(reversed(frames)).format())].append(name)
    entries = [f"{_words(who)}:\n{stack}" for stack, who in itertools.islice(names.items(), MOST)]
    left = len(names) - len(entries)
    return "\n".join([*entries, f"and {left} more places"] if left else entries)


def _words(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} times {names[0]}"


def _threads() -> Iterator[tuple[str, FrameType]]:
    named = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"thread {named.get(ident, ident)}", frame


def _greenlets() -> Iterator[tuple[str, FrameType]]:
    """Those that wait; one that runs is where its thread is."""
    for one in gc.get_objects():
        if isinstance(one, greenlet) and (frame := one.gr_frame) is not None:
            yield f"greenlet {getattr(one, 'name', '') or type(one).__name__}", frame
