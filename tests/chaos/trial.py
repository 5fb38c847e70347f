"""One trial: messages published and handled while something goes wrong, then every one of them accounted for."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from framework import Publisher
from framework.spool import segment
from framework.testing.servers import ROOT
from framework.testing.workers import Worker

BURST = 20
_PAUSE = 0.02  # seconds between two bursts
_SLACK = 500_000_000  # nanoseconds between what happened and when it was written down
_RANDOM = random.Random(20260101)


@dataclass(frozen=True)
class Fault:
    """Something that was done to a part, from when to when (nanoseconds since 1970)."""

    what: str
    begin: int
    end: int
    losses: int = 0
    """How many messages the server itself may have lost by it, as it counted just before."""
    repeats: int = 0
    """How many of those sent before it the server itself may have twice after it."""
    sent: int = 0
    """The number that was to be sent next when it began."""


@dataclass
class Verdict:
    """What became of every message."""

    name: str
    faults: int = 0
    sent: int = 0
    """Confirmed by the broker."""
    in_doubt: int = 0
    """Sent, and the connection ended before the answer: stored or not."""
    handled: int = 0
    """Different messages that a handler saw to its end."""
    duplicates: int = 0
    """Further times that one was handled."""
    unexplained: int = 0
    """Duplicates with no fault between the two times, and beyond those that the server itself made."""
    lost: int = 0
    """Confirmed, and never handled."""
    allowed: int = 0
    """How many may be lost by the server's own rules."""
    exactly: bool = False
    """Nobody keeps a message, so all that is allowed to be lost is: ``allowed`` counts it, and no other."""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        lost = self.lost == self.allowed if self.exactly else self.lost <= self.allowed
        return lost and not self.unexplained


@dataclass
class Trial:
    """Publishes numbered messages from a thread of its own, and keeps a worker running, while the caller does its worst."""

    folder: Path
    broker: str
    """The URL that the worker is given."""
    publish_to: str
    faults: list[Fault] = field(default_factory=list)
    confirmed: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)
    worker: Worker | None = None
    next: int = 0
    """The next number to send."""
    harmless: int = 0
    """Faults beside ``faults``: those that explain no duplicate."""

    # -- the worker

    def start_worker(self) -> None:
        """Returns when it is subscribed."""
        environ = {"CHAOS_FOLDER": str(self.folder), "PYTHONPATH": str(ROOT)}
        arguments = ("run", "tests.chaos.app", "--broker", self.broker, "--poll-interval=1s", "--connect-deadline=60s")
        self.worker = Worker(*arguments, cwd=self.folder, env=environ)
        self.worker.wait_for("ready", deadline=90)

    def kill_worker(self) -> None:
        """kill -9, and another one in its place."""
        assert self.worker is not None
        with self.fault("worker killed"):
            self.worker.process.kill()
            self.worker.wait()
        self.start_worker()

    @contextmanager
    def worker_held(self) -> Iterator[None]:
        """It does nothing at all in the block (SIGSTOP)."""
        assert self.worker is not None
        pid = self.worker.process.pid
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    # -- faults

    @contextmanager
    def fault(self, what: str, *, losses: int = 0, repeats: int = 0) -> Iterator[None]:
        """What is done in the block explains duplicates around it; ``losses`` and ``repeats`` as of ``Fault``."""
        begin, sent = time.time_ns(), self.next
        try:
            yield
        finally:
            self.faults.append(Fault(what, begin, time.time_ns(), losses, repeats, sent))

    def between(self, low: float, high: float) -> None:
        """Let things go on for a random while, in seconds."""
        time.sleep(_RANDOM.uniform(low, high))

    def until_published(self, count: int) -> None:
        """Wait until ``count`` more messages are stored: a fault when nothing moves shows nothing."""
        before, until = len(self.confirmed), time.monotonic() + 60
        while len(self.confirmed) < before + count:
            if time.monotonic() > until:
                raise RuntimeError(f"no {count} messages were stored within 60 s")
            time.sleep(0.01)

    # -- publishing

    @contextmanager
    def running(self) -> Iterator[Trial]:
        """Publish, and handle, while the block does what it does. The worker goes on after it, unless something failed."""
        try:
            self.start_worker()
            with self._publishing():
                self.until_published(6 * BURST)  # a first fault that comes before any message shows nothing
                yield self
        except BaseException:
            if self.worker is not None:
                self.worker.process.kill()
                self.worker.wait()
            raise

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        stop = threading.Event()
        failures: list[Exception] = []

        def publish() -> None:
            try:
                self._publish(stop)
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if failures:
            raise failures[0]

    def _publish(self, stop: threading.Event) -> None:
        publisher = Publisher(self.publish_to)
        while not stop.is_set():
            burst = range(self.next, self.next + BURST)
            self.next = burst.stop
            for each, error in zip(burst, publisher.publish_each("chaos", [b"%d" % n for n in burst]), strict=True):
                if error is None:
                    self.confirmed.add(each)
                elif error.stored is None:
                    self.doubtful.add(each)
            stop.wait(_PAUSE)
        publisher.close()

    # -- the books

    def settle(self, empty: Callable[[], bool] = lambda: False, *, patience: float = 60.0) -> None:
        """Wait until all is handled, or what is not cannot come any more, the broker being ``empty``. Then stop the worker.

        Raises RuntimeError when nothing has come for ``patience`` seconds."""
        assert self.worker is not None
        moved, left = time.monotonic(), len(self._missing())
        while left and not empty():
            if time.monotonic() - moved > patience:
                self.worker.process.kill()
                self.worker.wait()
                raise RuntimeError(f"{left} messages do not come: {self.worker.err[-5:]}")
            time.sleep(0.5)
            before, left = left, len(self._missing())
            if left < before:
                moved = time.monotonic()
        code = self.worker.stop()
        if code != 0:
            raise RuntimeError(f"the worker ended with {code}: {self.worker.err[-5:]}")

    def _missing(self) -> set[int]:
        return (self.confirmed - self.handled().keys()) | (self.confirmed - self.landed())

    def handled(self) -> dict[int, list[int]]:
        """Number -> when it was handled, in nanoseconds, as often as it was. A full disk leaves lines that are cut short."""
        times: dict[int, list[int]] = {}
        file = self.folder / "handled"
        whole = [line for line in file.read_bytes().split(b"\n") if line.endswith(b" .")] if file.exists() else []
        for line in whole:
            number, at, _ = line.split()
            times.setdefault(int(number), []).append(int(at))
        return times

    def landed(self) -> set[int]:
        """The numbers in the spool. Raises AssertionError when one is there twice."""
        numbers = [
            int(value)
            for one in segment.listing(self.folder / "spool" / "main")
            for value in segment.read(one.path, ["value"]).column("value").to_pylist()
        ]
        assert len(numbers) == len(set(numbers)), "the spool holds a message twice"
        return set(numbers)

    def verdict(self, name: str) -> Verdict:
        handled = self.handled()
        again = {number: list(pairwise(sorted(times))) for number, times in handled.items() if len(times) > 1}
        return Verdict(
            name,
            faults=len(self.faults) + self.harmless,
            sent=len(self.confirmed),
            in_doubt=len(self.doubtful),
            handled=len(handled),
            duplicates=sum(map(len, again.values())),
            unexplained=self._unexplained(again),
            lost=len(self._missing()),
            allowed=sum(one.losses for one in self.faults),
        )

    def _unexplained(self, again: dict[int, list[tuple[int, int]]]) -> int:
        """Each fault has made no more than its ``repeats``, of messages sent before it and handled after it."""
        left = [
            (first, number) for number, pairs in again.items() for first, second in pairs if not self._explained(first, second)
        ]
        made = [one for one in self.faults for _ in range(one.repeats)]
        for first, number in sorted(left):  # by when each must have been made: the earliest fault that can have is taken
            maker = next((one for one in made if number < one.sent and one.begin <= first), None)
            if maker is not None:
                made.remove(maker)
                left.remove((first, number))
        return len(left)

    def _explained(self, first: int, second: int) -> bool:
        return any(one.begin - _SLACK <= second and first <= one.end + _SLACK for one in self.faults)


Scenario = Callable[[Path, int], Verdict]
"""(an empty folder, how many times to do it) -> what became of the messages."""
