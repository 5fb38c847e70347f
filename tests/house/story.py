"""Runs the blocks of one page in their order, as a reader would who follows it: one folder, one shell, one Python namespace.

- A block that names a file is written into the folder. YAML, TOML, a unit of systemd and a Procfile are read by what reads them.
- Another block of Python is run; it sees what those before it have defined.
- Of a console block each line behind ``$`` is run by bash. Lines below it are what it prints; ``...`` stands for anything.
  A command that goes on until it is told to stop is left running. A block of text is what the last of these prints
  next; where it begins with ``^C``, that is interrupted first.
- Addresses and folders of a page are other ones here: ``places`` says which, text for text.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import psutil

from framework import settings
from framework.testing.workers import environment
from tests.house.pages import Block

GOES_ON = re.compile(
    r"workers (run|nsqlookupd)|workers tail (?!.*--count)|workers nsqd (?!.*--(drain-to|backup|verify|inspect))"
    r"|honcho start|beanstalkd"
)
DEADLINE = 40.0


def matches(expected: str, line: str) -> bool:
    """Whether ``line`` is what the page shows; how wide columns are does not matter."""
    pattern = ".*".join(re.escape(" ".join(part.split())) for part in expected.split("..."))
    return re.fullmatch(pattern, " ".join(line.split())) is not None


def not_among(expected: Sequence[str], lines: Sequence[str]) -> str | None:
    """The first of ``expected`` that is not among ``lines`` after the one before it; None when all are there."""
    rest = iter(lines)
    return next((one for one in expected if not any(matches(one, line) for line in rest)), None)


@dataclass
class Background:
    """A command that goes on."""

    command: str
    process: subprocess.Popen[bytes]
    log: Path
    read: int = 0
    """The lines of its log that the page has shown, and those between."""

    def wait_for(self, expected: Sequence[str]) -> None:
        """Return when it has printed these lines since the last time, among others and in any order: calls run side by side."""
        until = time.monotonic() + DEADLINE
        left = list(expected)
        while left:
            ended = self.process.poll() is not None
            lines = self.log.read_text().splitlines()  # all there is, where it has ended before
            left = [one for one in expected if not any(matches(one, line) for line in lines[self.read :])]
            assert not (left and ended), f"`{self.command}` ended without {left}:\n" + "\n".join(lines)
            assert time.monotonic() < until, f"`{self.command}` has not said {left}:\n" + "\n".join(lines)
            time.sleep(0.02)
        self.read = len(lines) if expected else self.read

    def interrupt(self) -> None:
        """As Ctrl-C does. ``workers`` ends with 0 then, honcho as a shell says of SIGINT."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(DEADLINE)
        meant = 130 if self.command.startswith("honcho") else 0
        assert code == meant, f"`{self.command}` ended with {code}:\n{self.log.read_text()}"

    def kill(self) -> None:
        if self.process.poll() is None:
            below = psutil.Process(self.process.pid).children(recursive=True)  # honcho's are in groups of their own
            for process in [self.process, *below]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()


@dataclass
class Story:
    """What has happened so far on a page."""

    folder: Path
    places: Mapping[str, str]
    variables: Mapping[str, str]
    module: ModuleType
    running: list[Background] = field(default_factory=list)

    def play(self, block: Block) -> None:
        """Raises AssertionError, or what the block raises."""
        text = self._here(block.text)
        if block.file:
            file = self.folder / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        match block.language:
            case "console":
                for command, expected in _commands(text):
                    self._run(command, expected)
            case "python" if not block.file:
                exec(compile(text, f"{block}", "exec", dont_inherit=True), vars(self.module))
            case "python":
                compile(text, block.file, "exec", dont_inherit=True)
            case "yaml":
                settings.load({}, self.folder / block.file, {})
            case "toml":
                tomllib.loads(text)
            case "ini":
                self._check_unit(self.folder / block.file)
            case "text" if self.running and text.startswith("^C\n"):
                last = self.running.pop()
                last.interrupt()
                last.wait_for(text.splitlines()[1:])
            case "text" if self.running:
                self.running[-1].wait_for(text.splitlines())
            case "procfile":
                self._run("honcho check", [])
            case _:
                raise AssertionError(f"{block}: nothing runs {block.language!r}: mark it with a reason")

    def end(self) -> None:
        """What still runs ends as it does when its terminal says so."""
        for one in reversed(self.running):
            one.interrupt()

    def kill(self) -> None:
        for one in self.running:
            one.kill()

    def _here(self, text: str) -> str:
        among = "|".join(re.escape(place) for place in sorted(self.places, key=len, reverse=True))
        return re.sub(among, lambda found: self.places[found[0]], text) if self.places else text

    # -- commands

    def _run(self, command: str, expected: Sequence[str]) -> None:
        if GOES_ON.match(command):
            self._leave_running(command, expected)
            return
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=DEADLINE, check=False,
        )  # fmt: skip
        said = done.stdout.decode()
        assert done.returncode == 0, f"`{command}` ended with {done.returncode}:\n{said}"
        missing = not_among(expected, said.splitlines())
        assert missing is None, f"`{command}` has not said {missing!r}:\n{said}"

    def _leave_running(self, command: str, expected: Sequence[str]) -> None:
        log = self.folder / f"log-{len(self.running)}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        last = Background(command, process, log)
        self.running.append(last)
        last.wait_for(expected or ["...ready..."])

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return environment({"PATH": path, **self.variables})

    # -- files

    def _check_unit(self, file: Path) -> None:
        """Its command is one that ``workers`` has, and systemd takes the unit where there is a systemd to ask."""
        (command,) = re.findall(r"^ExecStart=\S+/(workers .+)$", file.read_text(), flags=re.MULTILINE)
        if command.startswith("workers run"):
            self._run(f"{command.replace('run', 'check', 1)} --connect-deadline 0 || [ $? = 3 ]", ["ok...handler..."])
        else:
            self._run(f"{command} --version", ["nsq..."])
        verify = shutil.which("systemd-analyze")
        if verify is not None:
            self._run(f"{verify} verify ./{file.name} 2>&1 | grep {file.name} && exit 1; true", [])


def _commands(text: str) -> list[tuple[str, list[str]]]:
    """Each command of a console block with the lines below it."""
    commands: list[tuple[str, list[str]]] = []
    for line in text.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            commands.append((line.removeprefix("$ "), []))
        elif line.strip():
            assert commands, f"a console block begins with a command, not with {line!r}"
            commands[-1][1].append(line)
    return commands
