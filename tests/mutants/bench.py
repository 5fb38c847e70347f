"""A copy of the house in which a mutant lives, and the tests that it is shown to: those that run its line, then the room's.

Which test runs which line is measured once for a room (coverage.py with a context for each test). What only runs in processes
that tests start is not seen by it: hence the second look, which a mutant that lives always gets."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutants.population import Mutant
from tests.mutants.rooms import Room

ROOT = Path(__file__).parents[2]
FAST = "not slow and not spark"
MOST_AT_ONCE = 60
"""Tests of the first look: where more of them run the line, the quickest."""
PATIENCE = 60.0
"""Seconds for a test, and twice for the first look: a mutant that hangs is found out."""


class Verdict(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    killed: bool
    by: str
    """The first test that failed, or why else it counts as killed."""
    seconds: float


class Bench:
    """A copy of what git tracks and of what is new, in ``folder``; the packages and servers are those of the original."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
        )
        for name in filter(None, listing.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        for name in (".venv", ".cache"):
            if (ROOT / name).exists():
                (folder / name).symlink_to(ROOT / name)

    def learn(self, room: Room) -> Lines:
        """Run the room's tests once, unchanged, and note which of them runs which line. Raises RuntimeError if one fails."""
        began = time.monotonic()
        done = self._pytest(["-m", FAST, "-p", "tests.mutants.contexts", *room.tests], timeout=None)
        if done.returncode != 0:
            raise RuntimeError(f"without any mutant, a test fails:\n{_tail(done.stdout)}")
        return Lines(self.folder, time.monotonic() - began)

    def show(self, mutant: Mutant, room: Room, lines: Lines) -> Verdict:
        """Put the mutant in the place of the code, and see whether a test fails."""
        file, began = self.folder / mutant.path, time.monotonic()
        original = file.read_text()
        try:
            file.write_text(mutant.text(original))
            by = self._killer(lines.tests_of(mutant), 2 * PATIENCE) or self._killer(room.tests, 3 * lines.seconds + PATIENCE)
        finally:
            file.write_text(original)
        return Verdict(mutant, bool(by), by, time.monotonic() - began)

    def _killer(self, tests: Sequence[str], timeout: float) -> str:
        if not tests:
            return ""
        done = self._pytest(["-m", FAST, "-x", f"--timeout={PATIENCE:g}", *tests], timeout=timeout)
        if done.returncode in (0, 5):
            return ""
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return failed[0].partition(" - ")[0] if failed else f"pytest ended with {done.returncode}"

    def _pytest(self, arguments: Sequence[str], timeout: float | None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the servers that it started
            process.communicate()
            return subprocess.CompletedProcess(command, 1, "FAILED by standing still", "")
        return subprocess.CompletedProcess(command, process.returncode, out, "")


class Lines:
    """Which tests run a line; ``seconds``: how long all of the room's take."""

    def __init__(self, folder: Path, seconds: float) -> None:
        from coverage import CoverageData

        self._folder, self.seconds = folder, seconds
        data = CoverageData(str(folder / ".coverage"))
        data.read()
        self._contexts = {file: data.contexts_by_lineno(file) for file in data.measured_files()}

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that run the mutant's line, at most ``MOST_AT_ONCE``; none for what runs at import."""
        found = self._contexts.get(str(self._folder / mutant.path), {}).get(mutant.line, [])
        return sorted(one for one in found if one)[:MOST_AT_ONCE]


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-30:])
