"""How each message ended, kept in a file of SQLite without a server. Imported only where a setting or a reader asks for it."""

from __future__ import annotations

import atexit
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from framework.handler import HandlerSpec
from framework.history.searching import OUTCOMES, search
from framework.history.watch import Watch
from framework.history.writer import Writer

__all__ = ["OUTCOMES", "search", "watched"]

PATIENCE = 2.0
"""Seconds that the end of a process waits for what is still to be written."""


def watched(handlers: Iterable[HandlerSpec], path: Path, *, age: float, size: int) -> list[HandlerSpec]:
    """``handlers`` with how their messages end written to ``path``, for ``age`` seconds and in ``size`` bytes at most."""
    writer = Writer(path.absolute(), age=age, size=size)
    atexit.register(writer.flush, PATIENCE)
    return [replace(spec, middleware=(Watch(spec, writer), *spec.middleware)) for spec in handlers]
