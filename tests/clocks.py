"""Clocks for servers under test that are wrong, by a preloaded library: one that steps, so that what happens between two steps
happens at one time, and one that is set."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sysconfig
from pathlib import Path

from framework.testing.servers import Server, ServerMissing

_SOURCE = Path(__file__).with_name("clock.c")


def stepping(server: Server, folder: Path, step: float) -> None:
    """The server, not started yet, sees the time of day move on once in ``step`` seconds. The library is built into ``folder``.

    Raises ServerMissing where there is no C compiler."""
    server.command[:0] = ["env", f"LD_PRELOAD={library(folder)}", f"CLOCK_STEP_MS={round(step * 1000)}"]


def library(folder: Path) -> Path:
    """Built into ``folder``. Raises ServerMissing where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None or "linux" not in sysconfig.get_platform():
        raise ServerMissing("a clock that is wrong is built by `cc`, and there is none on the PATH")
    built = folder / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, _SOURCE, "-ldl"], check=True)
    return built


class Clock:
    """That of one process, or of several; to be set while they run."""

    def __init__(self, folder: Path) -> None:
        """Raises ServerMissing where there is no C compiler."""
        self._file = folder / "ahead"
        self._file.write_bytes(bytes(8))
        self.environ = {"LD_PRELOAD": str(library(folder)), "CLOCK_AHEAD": str(self._file)}
        """Of a process that has it."""

    def under(self, server: Server) -> None:
        """The server, not started yet, has it."""
        server.command[:0] = ["env", *(f"{name}={value}" for name, value in self.environ.items())]

    def ahead(self, seconds: float) -> None:
        """From now on; less than 0: it is behind."""
        with self._file.open("r+b") as file:  # in one write, as those see it who have it mapped
            file.write(struct.pack("=q", round(seconds * 1000)))
