"""What is common to every producer: an outlet for each thread, all of them closed at the end."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from framework.errors import PublishError
from framework.transports.outlet import Outlet, Outlets

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


class RacingOutlets(Outlets[str]):
    def __init__(self, racing: Racing) -> None:
        super().__init__(lambda: {"node"}, racing.dial, broker="broker")
        self._racing = racing

    def _make(self) -> Outlet[str]:
        self._racing.make()
        return super()._make()


class Racing:
    """Threads that publish for the first time, each until ``release``: an outlet is closed with its thread in any case."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.errors: list[BaseException | None] = []
        self.release = threading.Event()
        self.outlets = RacingOutlets(self)
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
            self.outlets.here().store("x", 1.0)
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
    racing.outlets.close()
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
    racing.outlets.close()
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
            racing.outlets.close()
            assert racing.all_closed()
    finally:
        sys.setswitchinterval(interval)
