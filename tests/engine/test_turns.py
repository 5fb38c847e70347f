"""How long the hub's turns take, and how much of the time it waits."""

from __future__ import annotations

import time
from collections.abc import Iterator

import gevent
import pytest

from framework.engine.turns import Turns


@pytest.fixture
def turns() -> Iterator[Turns]:
    turns = Turns(gevent.get_hub())
    turns.start()
    yield turns
    turns.stop()


def compute(seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass


def test_a_hub_that_only_computes_is_hardly_idle_and_one_that_only_sleeps_is(turns: Turns) -> None:
    for _ in range(30):
        compute(0.005)
        gevent.sleep(0.0001)  # not 0, after which the hub may go on without a poll
    assert turns.idle < 0.5
    assert turns.mean > 0.004
    for _ in range(60):
        gevent.sleep(0.002)
    assert turns.idle > 0.5


def test_a_hub_that_has_not_turned_yet_is_idle() -> None:
    turns = Turns(gevent.get_hub())
    assert turns.idle == 1.0
    turns.stop()
