"""The demo's child processes: started in groups of their own, watched, and all gone at the end."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

_POLL = 0.05  # seconds
_TELLING_CODES = (2, 3)  # of `workers`: wrong use, no broker
STOP_SECONDS = 12.0  # from SIGTERM to SIGKILL
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None  # here: what runs after a fork should load nothing


class ChildDied(Exception):
    """A process that should be running has ended; the words name it and say what it said last."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.code = code if code in _TELLING_CODES else 1
        """For the shell."""


class Child:
    """One process, the first of a group of its own, so that a Ctrl-C at the terminal does not reach it.

    On Linux it gets SIGTERM also when this process is killed. ``keeps``: file descriptors that it has open as well.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        environ: Mapping[str, str] | None = None,
        keeps: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environ or {})},
                start_new_session=True,
                pass_fds=keeps,
                preexec_fn=partial(_end_with, os.getpid()),  # noqa: PLW1509 (it takes no lock)
            )

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self.process.poll()

    def said(self) -> list[str]:
        """The complete lines that it wrote so far."""
        text = self.log.read_text(errors="replace")
        return text[: text.rfind("\n") + 1].splitlines()

    def last_words(self) -> str:
        """The last line that is no traceback's."""
        lines = [line.strip() for line in self.said() if line.strip() and not line.startswith((" ", "Traceback"))]
        if lines:
            return lines[-1]
        return "it said nothing" if shutil.disk_usage(self.log).free else "it said nothing, for the disk is full"

    def signal(self, number: signal.Signals) -> None:
        """To the whole group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Children:
    """All of them. ``check`` is called while waiting, and may raise to end the wait."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._running: list[Child] = []

    def start(self, child: Child) -> Child:
        self._running.append(child)
        return child

    def wait(self, finished: Callable[[], bool], *, but: Child | None = None, within: float | None = None) -> bool:
        """Whether ``finished`` came ``within`` so many seconds. Raises ChildDied when a child ends, ``but`` that one."""
        until = None if within is None else time.monotonic() + within
        while True:
            self._check()
            if finished():
                return True
            for child in self._running:
                if child is not but and child.code is not None:
                    words = f"{child.name} ended with code {child.code}: {child.last_words()} (all of it: {child.log})"
                    raise ChildDied(words, child.code)
            if until is not None and time.monotonic() > until:
                return False
            time.sleep(_POLL)

    def end(self, child: Child) -> int:
        """SIGTERM, and SIGKILL if it takes too long; returns its exit code."""
        if child.code is None:
            child.signal(signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        while child.code is None and time.monotonic() < until:
            time.sleep(_POLL)
        child.signal(signal.SIGKILL)  # whatever else is in the group
        if child in self._running:
            self._running.remove(child)
        return child.process.wait()

    def end_all(self) -> None:
        """The youngest first, since each uses those before it. Never raises."""
        below = [pid for child in self._running for pid in descendants(child.process.pid)]
        for child in reversed(self._running.copy()):
            child.signal(signal.SIGTERM)
        for child in reversed(self._running.copy()):
            self.end(child)
        kill(below)


def _end_with(parent: int) -> None:
    """Where the system can do it, this process gets SIGTERM when its ``parent`` ends, however that ends."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before it was asked for
            os._exit(1)


def descendants(pid: int) -> list[int]:
    """The processes below ``pid``, whatever groups they made for themselves."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _parents() -> Iterator[tuple[int, int]]:
    """Every process with its parent."""
    if not Path("/proc/self/stat").exists():
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
        for line in listing.splitlines():
            child, parent = line.split()
            yield int(child), int(parent)
        return
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # it ended meanwhile
                # The name before it stands in brackets, and may hold anything.
                yield int(folder.name), int((folder / "stat").read_text().rpartition(")")[2].split()[1])


def kill(pids: Sequence[int]) -> None:
    """At once, those that are still there. A JVM does not listen while it starts."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def python(*arguments: str) -> list[str]:
    """A command of this very Python."""
    return [sys.executable, *arguments]
