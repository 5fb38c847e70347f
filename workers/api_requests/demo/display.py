"""What the demo shows while it works: bars on a terminal, elsewhere a plain line a phase and every two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_EVERY = 2.0  # seconds


class Display(Protocol):
    """Phases by name, each with a part done; totals may become known later."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
    def begin(self, phase: str, total: int | None = None) -> None: ...
    def update(self, phase: str, done: int, total: int | None = None) -> None: ...
    def end(self, phase: str, words: str = "") -> None: ...
    def still(self, words: str) -> None: ...
    def say(self, words: str) -> None: ...


def display() -> Display:
    """For this process's standard output."""
    return _Bars() if sys.stdout.isatty() else _Lines()


class _Lines:
    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = self._start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, phase: str, total: int | None = None) -> None:
        self._line(phase, "...")

    def update(self, phase: str, done: int, total: int | None = None) -> None:
        if time.monotonic() - self._last >= _EVERY:
            self._line(phase, f"{done:,} of {total:,} ({100 * done // total} %)" if total else f"{done:,}")

    def still(self, words: str) -> None:
        """Said only when nothing else was for a while."""
        if time.monotonic() - self._last >= _EVERY:
            self._line("", words)

    def end(self, phase: str, words: str = "") -> None:
        self._line(phase, words or "done")

    def say(self, words: str) -> None:
        self._line("", words)

    def _line(self, phase: str, words: str) -> None:
        self._last = time.monotonic()
        sys.stdout.write(f"[{self._last - self._start:6.1f} s] {phase}{': ' if phase else ''}{words}\n")
        sys.stdout.flush()


class _Bars:
    def __init__(self) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description:<11}"),
            BarColumn(bar_width=32),
            TextColumn("{task.fields[words]}", markup=False),
            TimeElapsedColumn(),
            console=Console(),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, phase: str, total: int | None = None) -> None:
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(phase, total=total, words="")

    def update(self, phase: str, done: int, total: int | None = None) -> None:
        self.begin(phase, total)
        words = f"{done:,} of {total:,}" if total else f"{done:,}"
        # A bar that is full has ended for rich, but the phase has not.
        shown = min(done, total - 1) if total else done
        self._progress.update(self._tasks[phase], completed=shown, total=total, words=words)

    def end(self, phase: str, words: str = "") -> None:
        self.begin(phase)
        self._progress.update(self._tasks[phase], completed=1, total=1, words=words)

    def still(self, words: str) -> None:
        pass  # the spinners turn

    def say(self, words: str) -> None:
        self._progress.console.print(words, markup=False, highlight=False)
