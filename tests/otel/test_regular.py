"""The thread that exports: in rounds, at once where that is asked for; a flush waits for one whole round and no longer."""

from __future__ import annotations

import threading
import time
from typing import Any

import gevent
import pytest

from framework.otel import regular as module
from framework.otel.regular import Regular


def test_a_flush_waits_for_a_whole_round_that_begins_after_it_was_asked_for() -> None:
    go, rounds = threading.Semaphore(0), [0]

    def work() -> None:
        rounds[0] += 1
        go.acquire()

    regular = Regular(work, 60.0)
    regular.begin()
    regular.soon()
    while not rounds[0]:
        time.sleep(0.001)
    assert not regular.flush(time.monotonic() + 0.05), "the round that runs may have missed what was put since"
    go.release(2)
    began = time.monotonic()
    assert regular.flush(began + 30.0)
    assert time.monotonic() - began < 10
    assert rounds[0] >= 2
    go.release(100)


@pytest.mark.parametrize("error", [ValueError, RuntimeError])
def test_what_a_round_raises_costs_no_other_round(error: type[Exception]) -> None:
    rounds = []

    def work() -> None:
        rounds.append(1)
        raise error("no collector")

    regular = Regular(work, 0.01)
    regular.begin()
    until = time.monotonic() + 10
    while len(rounds) < 3:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert regular.flush(time.monotonic() + 10)


def test_where_it_has_not_begun_there_is_nothing_to_wait_for() -> None:
    began = time.monotonic()
    assert Regular(int, 60.0).flush(began + 30.0)
    assert time.monotonic() - began < 10


def test_the_end_of_the_thread_is_the_end_of_the_hub_that_was_made_in_it() -> None:
    hubs: list[Any] = []

    def work() -> None:
        hubs.append(gevent.get_hub())
        if len(hubs) == 2:
            raise SystemExit  # which is no Exception: the thread ends, as at the end of the process

    regular = Regular(work, 60.0)
    regular.begin()
    assert regular.flush(time.monotonic() + 20)
    assert hubs[0].loop is not None
    regular.soon()
    until = time.monotonic() + 20
    while hubs[0].loop is not None:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert hubs[0] is hubs[1]


def test_it_begins_once_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(module, "_start_new_thread", lambda *what: started.append(what))
    monkeypatch.setattr(module.os, "getpid", lambda: 1)  # a container's first
    regular = Regular(int, 60.0)
    regular.begin()
    regular.begin()
    regular._rounds = regular._begun = 5
    assert len(started) == 1
    assert not regular.flush(time.monotonic() + 0.02)
    monkeypatch.setattr(module.os, "getpid", lambda: -1)
    assert regular.flush(time.monotonic() + 60), "the thread is the parent's"
    regular.begin()
    assert (len(started), regular._rounds, regular._begun) == (2, 0, 0)
    assert not regular._wake.acquire(blocking=False), "nobody has rung here"
