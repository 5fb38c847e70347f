"""The demo in a process of its own, for the tests that look at it from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Run:
    """A demo in a process of its own, all whose children can be told by a mark in their environment."""

    def __init__(self, *arguments: str) -> None:
        self.mark = f"demo-test-{uuid4()}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workers.api_requests.demo", *arguments], cwd=ROOT, text=True, bufsize=1,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "DEMO_TEST": self.mark}, start_new_session=True,
        )  # fmt: skip

    def wait_for(self, words: str) -> str:
        """The first line that has them."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return line
        pytest.fail(f"the demo ended before it said {words!r}: {self.process.communicate()}")

    def finish(self, seconds: float = 560) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def _processes(self) -> Iterator[tuple[int, str]]:
        """What still runs: each process with its command line."""
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                if folder.name.isdecimal() and self.mark.encode() in (folder / "environ").read_bytes():
                    yield int(folder.name), (folder / "cmdline").read_text().replace("\0", " ")

    def alive(self) -> list[str]:
        """The command lines of what still runs."""
        return [command for _, command in self._processes()]

    def pid_of(self, words: str) -> int:
        """The process whose command line has these words."""
        return next(pid for pid, command in self._processes() if words in command)

    def wait_until_it_runs(self, words: str) -> None:
        until = time.monotonic() + 60
        while not any(words in command for command in self.alive()):
            assert time.monotonic() < until, self.alive()
            time.sleep(0.05)

    def none_is_left(self) -> bool:
        until = time.monotonic() + 5
        while self.alive() and time.monotonic() < until:
            time.sleep(0.05)
        return not self.alive()


@contextmanager
def demos() -> Iterator[Callable[..., Run]]:
    """Starts demos, and ends what is left of them."""
    started: list[Run] = []

    def start(*arguments: str) -> Run:
        started.append(Run(*arguments))
        return started[-1]

    try:
        yield start
    finally:
        for run in started:
            with suppress(ProcessLookupError):
                run.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                run.process.communicate(timeout=40)
            run.process.kill()
