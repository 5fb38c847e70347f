"""Where in the code calls are at this moment, seen from another thread than theirs.

While frames are walked, their greenlet may go on: its frames are then no more what they were, and where they were is read as if
they still were. So each step is one call of C, in which no other thread runs: ``attrgetter`` for a greenlet that waits,
and iterators of C for what runs. ``faulthandler`` counts to a hundred threads, and leaves out the oldest, which is the hub's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat, starmap, tee
from operator import attrgetter, itemgetter, methodcaller
from pathlib import Path
from types import FrameType
from typing import Any

from framework.engine.remote_slots import Call

DEPTH = 40
"""Frames of a greenlet, the innermost."""
_THREAD_DEPTH = 100
"""Frames of a thread, as many as ``faulthandler`` has: a handler may have called a library that goes deep."""
_FRAMES = [attrgetter("gr_frame" + ".f_back" * depth) for depth in range(DEPTH)]
_NOT_THE_APP = (str(Path(__file__).parents[1]) + "/", "src/gevent/")
_LIBRARIES = ("/site-packages/", "/lib/python")

_Frame = tuple[str, int, str]
"""File, line, function."""


def positions(calls: Sequence[Call], hub_thread: int) -> list[str]:
    """For each of ``calls``, ``file:line in function``: the innermost frame of the app. Empty where that is not known.

    ``hub_thread``: the native thread in which greenlets run.
    """
    found = [_words(of_greenlet(getattr(call, "greenlet", None) or getattr(call, "caller", None))) for call in calls]
    if all(found):
        return found
    running = threads()
    return [words or _of_thread(call, running, hub_thread) for words, call in zip(found, calls, strict=True)]


def of_greenlet(greenlet: Any) -> Iterator[_Frame]:
    """Its frames, the innermost first. Nothing of one that runs, or has ended."""
    for frame_at in _FRAMES:
        try:
            frame: FrameType | None = frame_at(greenlet)
        except AttributeError:
            return
        if frame is None:
            return
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def _of_thread(call: Any, running: dict[int, list[_Frame]], hub_thread: int) -> str:
    if pid := getattr(call, "pid", 0):
        return f"in its slot process {pid}"
    if not call.thread and getattr(call.greenlet, "gr_frame", None) is not None:  # it is not the one that runs
        return ""
    return _words(running.get(call.thread or hub_thread, ()))


def _words(frames: Iterable[_Frame]) -> str:
    """Of the innermost frame of the app: neither ours, nor gevent's, nor a library's where there is another."""
    library = ""
    for file, line, function in frames:
        if file.startswith(_NOT_THE_APP) or "/gevent/" in file:
            continue
        words = f"{file}:{line} in {function}"
        if not any(part in file for part in _LIBRARIES):
            return words
        library = library or words
    return library


def threads() -> dict[int, list[_Frame]]:
    """Native thread -> its frames, the innermost first."""
    rows = list(zip(*_idents_and_frames(), strict=True))  # the one call of C: what it goes through makes none of Python's
    return {
        ident: [(one.f_code.co_filename, one.f_lineno, one.f_code.co_name) for one in frames if one is not None]
        for ident, *frames in rows
    }


def _idents_and_frames() -> list[Iterator[Any]]:
    """Of all threads: their idents, their innermost frames, those that called these, and so on; ``None`` beyond the outermost.

    Nothing is looked at before it is asked for.
    """
    first, second = tee(chain.from_iterable(map(methodcaller("items"), starmap(sys._current_frames, [()]))))
    columns: list[Iterator[Any]] = [map(itemgetter(0), first)]
    frames: Iterator[Any] = map(itemgetter(1), second)
    for _ in range(_THREAD_DEPTH):
        column, callees = tee(frames)
        columns.append(column)
        frames = map(getattr, callees, repeat("f_back"), repeat(None))
    return columns
