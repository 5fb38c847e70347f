"""Shortens tracebacks to the frames of the app: the framework's are around each of them, and say nothing of the failure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_OURS = str(Path(__file__).parents[1]) + "/"
_FRAME = re.compile(r'(?P<indent>[ |]*  )File "(?P<file>[^"]+)", line \d+')


def own_frames(text: str) -> str:
    """``text``, a formatted exception, without the framework's frames; as it is where there are no others."""
    files = [frame["file"] for frame in map(_FRAME.match, text.splitlines()) if frame]
    if all(map(_is_ours, files)):
        return text
    return "\n".join(_kept(text.splitlines()))


def _is_ours(file: str) -> bool:
    """gevent's compiled modules name no file that there is, and are below ours only."""
    return file.startswith((_OURS, "src/gevent/"))


def _kept(lines: list[str]) -> Iterator[str]:
    indent: str | None = None
    """Of the frame that is left out: what is indented further is its source."""
    for line in lines:
        frame = _FRAME.match(line)
        if frame:
            indent = frame["indent"] if _is_ours(frame["file"]) else None
        elif indent is not None and not line.startswith((indent + "  ", indent + "[Previous line")):
            indent = None
        if indent is None:
            yield line
