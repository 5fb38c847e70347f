"""Where in the code calls are at this moment, seen from another thread than theirs.

While frames are walked, their greenlet may go on: its frames are then no more what they were, and where they were is read as if
they still were. So each step is one call of C, in which no other thread runs: ``attrgetter`` for a greenlet that waits,
``faulthandler`` for what runs.
"""

from __future__ import annotations

import faulthandler
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import Any

from framework.engine.remote_slots import Call

DEPTH = 40
"""Frames of a greenlet, the innermost."""
_FRAMES = [attrgetter("gr_frame" + ".f_back" * depth) for depth in range(DEPTH)]
_NOT_THE_APP = (str(Path(__file__).parents[1]) + "/", "src/gevent/")
_THREAD = re.compile(r"^(?:Current t|T)hread 0x([0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
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
    """Thread -> its frames, the innermost first."""
    found: dict[int, list[_Frame]] = {}
    with tempfile.TemporaryFile() if not hasattr(os, "memfd_create") else os.fdopen(os.memfd_create("stacks"), "w+b") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read().decode(errors="replace")
    frames: list[_Frame] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            frames = found.setdefault(int(thread[1], 16), [])
        elif frame := _FRAME.match(line):
            frames.append((frame[1], int(frame[2]), frame[3]))
    return found
