"""Where in the code calls are at this moment, seen from another thread than theirs.

While frames are walked, their greenlet may go on: its frames are then no more what they were, and where they were is read as if
they still were. And a frame that is held keeps the locals of a call that has returned: a file that is closed so stays open, and
the thread that looks closes it. So each step is one call of C, in which no other thread runs and which returns no frame:
``attrgetter`` for a greenlet that waits, and iterators of C for what runs. ``faulthandler`` counts to a hundred threads, and
leaves out the oldest, which is the hub's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat, starmap, tee
from operator import attrgetter, itemgetter, methodcaller
from pathlib import Path
from typing import Any

from framework.engine.remote_slots import Call
from framework.observe.logging import encodable

DEPTH = 40
"""Frames of a greenlet, the innermost."""
_THREAD_DEPTH = 100
"""Frames of a thread, as many as ``faulthandler`` has: a handler may have called a library that goes deep."""
_WHAT = ("f_code.co_filename", "f_lineno", "f_code.co_name")
_FRAMES = [attrgetter(*(f"gr_frame{'.f_back' * depth}.{what}" for what in _WHAT)) for depth in range(DEPTH)]
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
            frame: _Frame = frame_at(greenlet)
        except AttributeError:  # there is none
            return
        yield frame


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
        words = encodable(f"{file}:{line} in {function}")
        if not any(part in file for part in _LIBRARIES):
            return words
        library = library or words
    return library


def threads() -> dict[int, list[_Frame]]:
    """Native thread -> its frames, the innermost first."""
    found: dict[int, list[_Frame]] = {}
    for code, line in list(_codes_and_lines()):  # the one call of C: what it goes through makes none of Python's
        if isinstance(code, int):
            frames = found[code] = []
        else:
            frames.append((code.co_filename, line, code.co_name))
    return found


def _codes_and_lines() -> Iterator[tuple[Any, int]]:
    """Of all threads, one after the other: ident and 0, then code and line of its frames, the innermost first."""
    idents_and_frames = filter(None, chain.from_iterable(zip(*_idents_and_frames(), strict=True)))
    for_code, ident, for_line = tee(idents_and_frames, 3)
    return zip(
        map(getattr, for_code, repeat("f_code"), ident), map(getattr, for_line, repeat("f_lineno"), repeat(0)), strict=True
    )


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
