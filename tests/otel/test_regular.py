"""The thread that exports: in rounds, at once where that is asked for; a flush waits for one whole round and no longer."""

from __future__ import annotations

import threading
import time

import pytest

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
