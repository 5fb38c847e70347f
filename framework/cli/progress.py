"""Shows how far a verb has come: a bar on a terminal, a plain line every two seconds elsewhere; both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

_INTERVAL = 2.0


class Progress(Protocol):
    def update(self, done: int, messages: int) -> None:
        """``done`` of the total are dealt with, and ``messages`` messages published so far."""


@contextmanager
def progress(
    total: int | None, *, doing: str = "publishing", done: str = "published", of: str = "the input"
) -> Iterator[Progress]:
    """``total``: how much there is to do, in the unit of ``update``; None when it is not known. ``of``: what that is."""
    if not sys.stderr.isatty():
        yield _Lines(total, done, of)
        return
    columns = (TextColumn(doing), BarColumn(), TextColumn("{task.fields[messages]:,} messages"), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _OnTerminal(bar, total)


class _OnTerminal:
    def __init__(self, bar: Bar, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=total, messages=0)

    def update(self, done: int, messages: int) -> None:
        self._bar.update(self._task, completed=done, messages=messages)


class _Lines:
    def __init__(self, total: int | None, verb: str, of: str) -> None:
        self._total = total
        self._verb = verb
        self._of = of
        self._next = time.monotonic() + _INTERVAL

    def update(self, done: int, messages: int) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _INTERVAL
        share = f", {done * 100 // self._total} % of {self._of}" if self._total else ""
        click.echo(f"{self._verb} {messages:,} messages{share}", err=True)
