"""What is common to every producer: a failover for each thread, all of them closed at the end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from ast import literal_eval
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.errors import AccessDenied, PublishError
from framework.transports import failover
from framework.transports.failover import Failover
from framework.transports.per_thread import PerThread
from framework.transports.publish_link import InDoubt, NotStored

DEADLINE = 10.0


class Link:
    """A node that stores everything."""

    node = "node"

    def __init__(self) -> None:
        self.closed = False

    def usable(self) -> bool:
        return not self.closed

    def ask(self, command: str, until: float) -> None: ...

    def close(self) -> None:
        self.closed = True

    shut = close

    def fileno(self) -> int:
        return -1 if self.closed else 7


class RacingThreads(PerThread[str]):
    def __init__(self, racing: Racing) -> None:
        super().__init__(lambda: {"node"}, racing.dial, broker="broker")
        self._racing = racing

    def _make(self) -> Failover[str]:
        self._racing.make()
        return super()._make()


class Racing:
    """Threads that publish for the first time, each until ``release``: a failover is closed with its thread in any case."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.errors: list[BaseException | None] = []
        self.release = threading.Event()
        self.failovers = RacingThreads(self)
        self._threads: list[threading.Thread] = []

    def make(self) -> None: ...

    def dial(self, node: str, timeout: float) -> Any:
        self.links.append(Link())
        return self.links[-1]

    def start(self, count: int = 1) -> None:
        self._threads = [threading.Thread(target=self._publish) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        try:
            self.failovers.here().store("x", 1.0)
            self.errors.append(None)
        except BaseException as error:
            self.errors.append(error)
        self.release.wait(DEADLINE)

    def all_closed(self) -> bool:
        """Once all have published; ends the threads."""
        until = time.monotonic() + DEADLINE
        while len(self.errors) < len(self._threads):
            assert time.monotonic() < until
            time.sleep(0.001)
        closed = all(link.closed for link in self.links)
        self.release.set()
        for thread in self._threads:
            thread.join(DEADLINE)
        assert all(error is None or isinstance(error, PublishError) for error in self.errors), self.errors
        return closed


def test_closing_also_closes_the_outlet_that_a_thread_makes_meanwhile() -> None:
    making, closed = threading.Event(), threading.Event()

    class Slow(Racing):
        def make(self) -> None:
            making.set()
            closed.wait(0.3)  # the other thread is in the middle of closing now, or has closed

    racing = Slow()
    racing.start()
    assert making.wait(DEADLINE)
    racing.failovers.close()
    closed.set()
    assert racing.all_closed()


def test_closing_also_closes_the_link_that_is_dialled_meanwhile() -> None:
    dialling, closed = threading.Event(), threading.Event()

    class Slow(Racing):
        def dial(self, node: str, timeout: float) -> Any:
            dialling.set()
            assert closed.wait(DEADLINE)
            return super().dial(node, timeout)

    racing = Slow()
    racing.start()
    assert dialling.wait(DEADLINE)
    racing.failovers.close()
    closed.set()
    assert racing.all_closed()
    assert [type(error) for error in racing.errors] == [PublishError]


def test_many_threads_that_publish_first_while_it_is_closed_leave_no_connection() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(100):
            racing = Racing()
            racing.start(4)
            racing.failovers.close()
            assert racing.all_closed()
    finally:
        sys.setswitchinterval(interval)


class Doubtful(Link):
    """Answers what it is told to, one after the other, and the last for ever."""

    def __init__(self, *outcomes: Exception | None) -> None:
        super().__init__()
        self.outcomes = list(outcomes)

    def ask(self, command: str, until: float) -> Exception | None:
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]

    def ask_each(self, commands: Sequence[str], timeout: float) -> list[Exception | None]:
        return [self.ask(command, timeout) for command in commands]


def failovers(*outcomes: Exception | None) -> PerThread[str]:
    link = Doubtful(*outcomes)
    return PerThread(lambda: {"node"}, lambda node, timeout: link, broker="broker")


def test_what_is_in_doubt_is_sent_again_where_doubles_are_dropped() -> None:
    made = failovers(InDoubt("no answer"), None)
    made.here().store("x", 5.0)
    made.close()
    made = failovers(InDoubt("no answer"), NotStored("not now"), None)
    assert made.here().store_each(["x"], 5.0) == [None]
    made.close()


@pytest.mark.parametrize("last", [NotStored("not now"), PublishError("refused", stored=False)])
def test_what_was_in_doubt_once_is_never_said_to_be_refused(last: Exception) -> None:
    made = failovers(InDoubt("no answer"), last)
    with pytest.raises(PublishError, match="before that: no answer") as unknown:
        made.here().store("x", 0.3)
    assert unknown.value.stored is None
    made.close()
    made = failovers(InDoubt("no answer"), last)
    [error] = made.here().store_each(["x"], 0.3)
    assert error is not None
    assert error.stored is None
    made.close()


def test_what_was_never_in_doubt_is_said_to_be_refused() -> None:
    made = failovers(NotStored("not now"))
    with pytest.raises(PublishError) as refused:
        made.here().store("x", 0.3)
    assert refused.value.stored is False
    made.close()


def test_the_last_try_has_time_enough_to_say_why_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of some milliseconds took a node that rejects us for one that is down, and named no reason but these."""
    now, given = 0.0, list[float]()

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def dial(node: str, timeout: float) -> Any:
        given.append(timeout)
        if len(given) > 1:
            raise AccessDenied("Authorization Violation", fix="the password is wrong")
        return Doubtful(NotStored("gone"))

    monkeypatch.setattr(failover, "monotonic", lambda: now)
    monkeypatch.setattr(failover, "gevent", SimpleNamespace(sleep=sleep, Timeout=gevent.Timeout))
    monkeypatch.setattr(failover, "_pause", lambda attempt: 60.0)
    made = PerThread(lambda: {"node"}, dial, broker="broker").here()
    for seconds, least in ((5.0, 0.12), (1.0, 0.02), (0.1, 0.009)):
        if made._link is not None:
            made._link.close()
        with pytest.raises(PublishError):
            made.store("x", seconds)
        assert given[-1] >= least
    made.close()


FEW_FILES = """
import os, resource, threading, time
from framework.errors import BrokerUnreachable, PublishError
from framework.transports.per_thread import PerThread
def dial(node, timeout):
    if few:
        raise BrokerUnreachable("nobody")
    return Link()
class Link:
    close = lambda self: None
few = True
publishing = PerThread(lambda: {"node"}, dial, broker="broker")
publishing.here()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    os.close(held.pop())
def publish():
    try:
        publishing.here().store("x", 1.0)
    except PublishError as error:
        said.append((error.stored, str(error)))
said = []
threads = [threading.Thread(target=publish) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
try:
    publishing.here().store("x", 0.1)  # it begins a thread that looks for the broker
except PublishError as error:
    said.append((error.stored, str(error)))
time.sleep(0.1)
for descriptor in held:
    os.close(descriptor)
print(said)
few = False
while publishing._circuit._down_since is not None:
    time.sleep(0.01)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors as Linux does")
def test_where_no_file_can_be_opened_threads_that_begin_to_publish_are_told_so_and_the_broker_is_found_when_one_can():
    done = subprocess.run([sys.executable, "-c", FEW_FILES], capture_output=True, text=True, check=False, timeout=60)
    words = "this thread cannot begin to publish: Too many open files: raise the limit of open files (ulimit -n)"
    assert done.returncode == 0, done.stderr[-500:]
    *begun, (stored, why) = literal_eval(done.stdout)
    assert begun == [(False, words)] * 4
    assert not stored
    assert why.endswith(": node: nobody")  # within 0.1 s, or on a busy machine for longer than that
