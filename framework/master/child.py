"""One process of the worker as its master sees it: started, listened to, told what to do, ended. It decides nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import gevent
from gevent import subprocess
from gevent.queue import Queue

from framework.master import books
from framework.master.to_master import FD
from framework.resident import rss

if TYPE_CHECKING:
    from framework.admin.snapshot import Snapshot

LAST_WORDS = 2.0
"""Seconds for which the socket of a process that has ended is read on: others may hold it open."""

_NAMES = {int(number): number.name for number in signal.Signals}
"""Most of those between SIGRTMIN and SIGRTMAX have none."""

Heard = Callable[["Child", dict[str, Any] | None], object]
"""Called with each report, and with None when the process has ended."""


class Child:
    """A process that is started with it. ``heard`` is called in greenlets of its own."""

    def __init__(self, command: Sequence[str], folder: str, *, generation: int, heard: Heard) -> None:
        self.generation = generation
        """Of the code and the settings that it was started with."""
        self.began = time.monotonic()
        self.ready = False
        """It has subscribed: it once could take messages."""
        self.said_late = False
        """The log has said that it has not subscribed yet."""
        self.report: dict[str, Any] = {}
        self.silent = 0.0
        """Seconds since its last report, as the master's looks add them up."""
        self.chance = random.random()
        """Its place in the jitter of limits, from 0 to 1."""
        self.due = ""
        """Why another is to take its place."""
        self.kill_at = float("inf")
        """Monotonic: when it is killed if it has not ended."""
        self._ledgers: books.Books = {}
        self._published: books.Books = {}
        self._said_last = False
        self.snapshot: Snapshot | None = None
        """The last one that it gave."""
        self.health: list[dict[str, Any]] = []
        """The same."""
        self._answers: dict[int, Any] = {}
        self._awaited: set[int] = set()
        self._asked = 0
        self._to_say: Queue = Queue()
        mine, its = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                command, cwd=folder, env=os.environ | {FD: str(its.fileno())}, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C reaches a terminal's whole group, and it is the master who says when they stop
            )  # fmt: skip
        finally:
            its.close()
        self._socket = mine
        reader = gevent.spawn(self._read, heard)
        gevent.spawn(self._write)
        gevent.spawn(self._await, reader, heard)

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    @property
    def age(self) -> float:
        return time.monotonic() - self.began

    # -- what it is told

    def stop(self, within: float, *, now: bool = False) -> None:
        """Have it drain, or give back all at once; what has not ended ``within`` seconds is killed."""
        self.kill_at = min(self.kill_at, time.monotonic() + within)
        self._to_say.put({"do": "stop", "now": now})

    def dump(self, why: str) -> None:
        """Have it write where all of it is."""
        self._to_say.put({"do": "dump", "why": why})

    def open_log(self) -> None:
        """Have it open the file of its log again."""
        self._to_say.put({"do": "open log"})

    def ask(self, what: dict[str, Any]) -> int:
        """Returns the number by which there is an ``answer`` to it later."""
        self._asked += 1
        self._awaited.add(self._asked)
        self._to_say.put({**what, "question": self._asked})
        return self._asked

    def has_answered(self, question: int) -> bool:
        """Or never will."""
        return question in self._answers or self.code is not None

    def answer(self, question: int) -> Any:
        """None where there is none, and the second time. One that comes later is for nobody."""
        self._awaited.discard(question)
        return self._answers.pop(question, None)

    def tell(self, command: dict[str, Any]) -> None:
        """Have it do what an operator has asked for."""
        self._to_say.put({"do": "act", "command": command})

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    # -- what is known of it

    @property
    def code(self) -> int | None:
        """Its exit status; negative: the signal that ended it; None: it runs."""
        code: int | None = self._process.returncode
        return code

    @property
    def end(self) -> str:
        """How it ended, in words; it has."""
        code = self.code
        assert code is not None
        if code < 0:
            return f"was killed by {_NAMES.get(-code, f'signal {-code}')}"
        return f"ended with exit status {code}"

    @property
    def tasks(self) -> int:
        return int(self.report.get("tasks", 0))

    @property
    def rss(self) -> int:
        return rss(self.pid)

    @property
    def ledgers(self) -> books.Books:
        """Of one that has ended without its last words what was in flight counts as lost leases."""
        return self._ledgers if self._said_last or self.code is None else books.closed(self._ledgers)

    @property
    def published(self) -> books.Books:
        return self._published

    # -- greenlets

    def _read(self, heard: Heard) -> None:
        with suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):  # it was killed in the middle of it
                    break
                report = json.loads(line)
                self.silent = 0.0
                if "question" in report:
                    self._answered(report["question"], report["answer"])
                else:
                    self._take(report, heard)

    def _take(self, report: dict[str, Any], heard: Heard) -> None:
        self.snapshot = report.get("snapshot", self.snapshot)
        self._ledgers = report.get("ledgers", self._ledgers)
        self._published = report.get("published", self._published)
        if report.get("last"):
            self._said_last = True
        else:
            self.report = report
            heard(self, report)

    def _answered(self, question: int, answer: Any) -> None:
        if isinstance(answer, dict) and "handlers" in answer:  # a snapshot: what is shown of a process is in its ledger
            self._ledgers, self._published = books.of_rows(answer["handlers"])
        self._answers[question] = answer
        if question not in self._awaited:  # looked at last: who waits is another thread, and may have given up just now
            self._answers.pop(question, None)

    def _write(self) -> None:
        with suppress(OSError):
            while (what := self._to_say.get()) is not None:
                self._socket.sendall(json.dumps(what).encode() + b"\n")

    def _await(self, reader: gevent.Greenlet, heard: Heard) -> None:
        self._process.wait()
        reader.join(LAST_WORDS)
        reader.kill()
        self._to_say.put(None)
        self._socket.close()
        heard(self, None)


def command() -> list[str]:
    """What this process was started with: a child is the same, with another end of a socket."""
    return [sys.executable, *sys.orig_argv[1:]]


def folder() -> str:
    """The current one by the name that the shell knows it by: a link to the newest release leads to the new one later."""
    here, shown = os.getcwd(), os.environ.get("PWD", "")
    with suppress(OSError):
        if os.path.samefile(shown, here):
            return shown
    return here
