"""Starts ``workers`` processes for tests, reads what they say, and ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without any setting of ``workers``, and ``extra``."""
    kept = {name: value for name, value in os.environ.items() if name != "BROKER_URL" and not name.startswith("WORKERS_")}
    return {**kept, "PYTHONUNBUFFERED": "1", **(extra or {})}


def command(*arguments: str) -> list[str]:
    """The command line of ``workers`` with ``arguments``, in this Python."""
    return [sys.executable, "-m", "framework.cli", *arguments]


def call(
    *arguments: str, cwd: Path, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``workers`` to its end (60 seconds at most)."""
    done = subprocess.run(
        command(*arguments), cwd=cwd, input=stdin, env=environment(env), capture_output=True, timeout=60, check=False
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class Worker:
    """A running ``workers`` process, what it has written so far, and its end."""

    def __init__(self, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self.process = subprocess.Popen(
            command(*arguments),
            cwd=cwd,
            env=environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [_reader(self.process.stdout, self.out), *self._read_stderr(self.process.stderr)]

    def _read_stderr(self, stream: IO[bytes]) -> list[threading.Thread]:
        return [_reader(stream, self.err)]

    def wait_until(self, condition: Callable[[], bool], *, deadline: float = 20.0) -> None:
        """Raises TimeoutError with what the process said, when ``condition`` does not come true in time."""
        until = time.monotonic() + deadline
        while not condition():
            if time.monotonic() > until or (self.process.poll() is not None and not self._reading and not condition()):
                raise TimeoutError(f"exit code {self.process.poll()}, stdout {self.out[-20:]}, stderr {self.err[-20:]}")
            time.sleep(0.01)

    def wait_for(self, text: str, *, deadline: float = 20.0) -> None:
        """Return when a line with ``text`` has been written to stdout or stderr."""
        self.wait_until(lambda: any(text in line for line in [*self.out, *self.err]), deadline=deadline)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, *, deadline: float = 30.0) -> int:
        """The exit code, all output being read."""
        code = self.process.wait(deadline)
        for reader in self._readers:
            reader.join(5)
        return code

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    @property
    def _reading(self) -> bool:
        return any(reader.is_alive() for reader in self._readers)


@contextmanager
def working(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None, ready: str = "ready") -> Iterator[Worker]:
    """A ``workers`` process that has said ``ready``; killed at the end if it has not ended by itself."""
    worker = Worker(*arguments, cwd=cwd, env=env)
    try:
        worker.wait_for(ready)
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.wait()


def _reader(stream: IO[bytes], lines: list[str]) -> threading.Thread:
    def read() -> None:
        with stream:
            for line in stream:
                lines.append(line.decode(errors="replace").rstrip("\n"))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread
