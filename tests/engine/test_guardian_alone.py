"""The guardian where the machine gives it no more threads: it says nothing, and keeps the connections all the same."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework import log_thread
from framework.engine import guardian as guardians
from framework.engine.guardian import Guardian


class Line:
    """A connection that counts how often it was kept. ``fails``: each time."""

    def __init__(self, *, fails: bool = False) -> None:
        self.rescuable = self
        self.kept = 0
        self._fails = fails

    def rescue(self, now: float, expired: set[Any]) -> None:
        self.kept += 1
        if self._fails:
            raise ZeroDivisionError

    def rescued(self) -> None: ...


@pytest.mark.parametrize("refused", [RuntimeError("can't start new thread"), None])
def test_a_hub_that_stands_still_has_its_connections_kept_whether_or_not_that_can_be_logged(
    monkeypatch: pytest.MonkeyPatch, refused: Exception | None
) -> None:
    said: list[str] = []

    def start(say: object, words: tuple[Any, ...]) -> None:
        if refused is not None:
            raise refused
        said.append(str(words[:1]))

    lines = [Line(), Line(fails=True), Line()]
    running = SimpleNamespace(expired=lambda now: set(), computing=True, threads=())
    consumer: Any = SimpleNamespace(running=running, accounts=lines, spec=SimpleNamespace(name="orders/billing"))
    turns: Any = SimpleNamespace(stamp=time.monotonic() - 100, over=False)
    stop: Any = SimpleNamespace(times=0, until=math.inf)
    one = Guardian(turns, [consumer], stop, None)
    monkeypatch.setattr(guardians, "LOOK", 0.001)
    monkeypatch.setattr(guardians, "BLOCKED", 0.002)
    one.start()
    monkeypatch.setattr(log_thread, "_start_new_thread", start)
    with gevent.Timeout(10):
        while min(line.kept for line in lines) < 5:
            gevent.sleep(0.002)
    one.stop()
    assert bool(said) is (refused is None)
