"""A copy of the house in which a mutant lives, and the tests that it is shown to, one after the other until one fails.

A test that fails is believed when it fails again by itself, and passes by itself without the mutant; so is a pytest that does
not start, when it starts without it: what a busy machine does is not taken for a kill."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil

from tests.disks import unmount_below
from tests.mutants.lines import Lines
from tests.mutants.nearness import nearest
from tests.mutants.population import Mutant

ROOT = Path(__file__).parents[2]
FAST = "not slow and not spark"
_START = 60.0
"""Seconds, at most, until pytest has begun its first test, and between its last test and its end."""
_NEARBY = 100.0
"""Seconds, at most, for the tests nearby: for what takes longer it pays to know which tests run the line."""


Limit = Callable[[str], float]
"""Test -> the seconds after which it is said to stand still."""


class Verdict(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    killed: bool
    by: str
    """The test that failed, or why else it counts as killed."""
    seconds: float


class Bench:
    """A copy of what git tracks and of what is new, in ``folder``; the packages and servers are those of the original."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "house"
        self._tests = folder / "tests.json"
        self._scratch = folder / "tmp"
        self._sound: set[str] = set()
        """Tests that have been seen to pass by themselves."""
        self._written = 1_000_000_000
        """A time of modification that no file had yet: what is compiled is kept by time and size."""
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
        )
        for name in filter(None, listing.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)
        for name in (".venv", ".cache"):
            if (ROOT / name).exists():
                (self.folder / name).symlink_to(ROOT / name)

    def learn(self, places: Sequence[str], jobs: int) -> Lines:
        """Run these tests once, unchanged; those that fail will not judge. Raises RuntimeError where pytest itself fails."""
        arguments = ["-m", FAST, "-p", "tests.mutants.learning", "-n", str(jobs), "--dist", "loadgroup", *places]
        with tempfile.TemporaryFile("w+") as out:
            process = self._start(arguments, out, {})
            process.wait()
            self.end_all()
            lines = Lines(self.folder)
            if process.returncode not in (0, 1) or not lines:  # a file that cannot be imported is no test
                raise RuntimeError(f"pytest ended with {process.returncode}:\n{_tail(out)}")
        for test in lines.failed:
            lines.leave_out(test)
        return lines

    def show_nearby(self, mutant: Mutant, places: Sequence[str]) -> Verdict:
        """Put the mutant in the place of the code, and see whether a test of the nearest files fails soon."""
        files = nearest(self.folder, mutant.path, places)
        file, began = self.folder / mutant.path, time.monotonic()
        until = began + _NEARBY
        original = file.read_text()
        mutated = mutant.text(original)
        while files:
            try:
                self._write(file, mutated)
                by = self._first_failure(files, lambda test: min(_alone(test), until - time.monotonic()))
                of_a_test = "::" in by  # what keeps pytest from starting is no one test's word
                again = by and time.monotonic() < until and self._first_failure([by] if of_a_test else files, _alone)
            finally:
                self._write(file, original)
            if again and self._is_sound(by if of_a_test else files[0], _alone):
                return Verdict(mutant, True, by, time.monotonic() - began)
            if not of_a_test or time.monotonic() >= until:
                break
            files = files[files.index(by.partition("::")[0]) + 1 :]  # as one of a busy machine's, whose file says nothing
        return Verdict(mutant, False, "", time.monotonic() - began)

    def show(self, mutant: Mutant, places: Sequence[str], lines: Lines) -> Verdict:
        """Put the mutant in the place of the code, and see whether a test fails."""
        file, began = self.folder / mutant.path, time.monotonic()
        original = file.read_text()
        mutated, tests = mutant.text(original), lines.order(mutant, original, places)
        while tests:
            try:
                self._write(file, mutated)
                by = self._first_failure(tests, lines.limit)
                suspects = [by] if by in tests else tests  # what keeps pytest from starting is no one test's word
                again = by and self._first_failure(suspects, lines.limit)
            finally:
                self._write(file, original)
            judge = by if by in tests else tests[0]  # where pytest did not start, it must without the mutant
            if again and self._is_sound(judge, lines.limit):
                return Verdict(mutant, True, by, time.monotonic() - began)
            tests = tests[tests.index(judge) + 1 :] if by else []
        return Verdict(mutant, False, "", time.monotonic() - began)

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text)
        self._written += 1
        os.utime(file, (self._written, self._written))

    def _is_sound(self, test: str, limit: Limit) -> bool:
        if test not in self._sound and not self._first_failure([test], limit):
            self._sound.add(test)
        return test in self._sound

    def _first_failure(self, tests: Sequence[str], limit: Limit) -> str:
        """The first of these tests, in their order, that fails or stands still; else what pytest itself fails with."""
        self._tests.write_text(json.dumps(tests))
        files = sorted({test.partition("::")[0] for test in tests})
        news, theirs = os.pipe()
        with tempfile.TemporaryFile("w+") as out:
            told = {"MUTANTS_TESTS": str(self._tests), "MUTANTS_NEWS": str(theirs)}
            arguments = ["-x", "-m", FAST, "-p", "tests.mutants.chosen", *files]
            process = self._start(arguments, out, told, pass_fds=(theirs,))
            os.close(theirs)
            try:
                return _listen(process, news, limit) or _why(process, out)
            finally:
                os.close(news)
                self.end_all()
                process.wait()

    def _start(self, arguments: Sequence[str], out: IO[str], told: Mapping[str, str], **more: Any) -> subprocess.Popen[str]:
        common = ["-q", "-p", "no:cacheprovider", f"--basetemp={self._scratch}", "--hypothesis-seed=0"]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), **told}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *common, *arguments], cwd=self.folder, env=environment, text=True, stdout=out,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, **more,
        )  # fmt: skip

    def end_all(self) -> None:
        """Nothing that was started here lives on, whatever the mutant made of its end, and nothing stays mounted."""
        for process in psutil.process_iter():
            try:
                if process.environ().get("PYTHONPATH") == str(self.folder):
                    process.kill()
            except psutil.Error:  # it has ended meanwhile, or is not ours to look at
                pass
        unmount_below(self._scratch)


def _alone(_test: str) -> float:
    """The seconds that a test of which nothing is known may take, set-up and all."""
    return 30.0


def _listen(process: subprocess.Popen[str], news: int, limit: Limit) -> str:
    """The test that fails, stands still, or ends the process, with whichever code; nothing when none does."""
    under_way, until, over = "", time.monotonic() + _START, False
    while not over:
        over = process.poll() is not None  # before the last look at the news
        for what, test in _news(news, 0.1):
            if what == "failed":
                return test
            under_way, until = test, time.monotonic() + (limit(test) if test else _START)
        if time.monotonic() > until:
            return under_way or "standing still"
    return under_way


def _news(pipe: int, patience: float) -> Iterator[tuple[str, str]]:
    """What was told, with the test that it is about; empty where all are over. Each line is written, and read, as a whole."""
    if select.select([pipe], [], [], patience)[0]:
        for line in os.read(pipe, 65536).decode().splitlines():
            what, _, test = line.partition(" ")
            yield what, test


def _why(process: subprocess.Popen[str], out: IO[str]) -> str:
    if process.returncode in (0, 5):
        return ""
    return f"pytest ended with {process.returncode}: {_tail(out, 3)}"


def _tail(out: IO[str], lines: int = 30) -> str:
    out.seek(0)
    return "\n".join(out.read().splitlines()[-lines:])
