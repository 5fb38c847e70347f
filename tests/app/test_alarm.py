"""A countdown starts anew each time, whatever was left of the time before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent import get_hub

from framework.alarm import Countdown


class Heard:
    """When a countdown called."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def __call__(self) -> None:
        self.at.append(time.monotonic())


@pytest.fixture
def countdown() -> Iterator[Countdown]:
    countdown = Countdown(get_hub().loop, 0.3)
    yield countdown
    countdown.close()


def passed(start: Callable[[], None], heard: Heard) -> float:
    """Seconds from ``start`` until it was heard."""
    begun, before = time.monotonic(), len(heard.at)
    start()
    gevent.sleep(1.0)
    assert len(heard.at) == before + 1, "once, and no more"
    return heard.at[-1] - begun


def test_it_takes_as_long_the_second_time_as_the_first(countdown: Countdown) -> None:
    heard = Heard()
    for _ in range(2):
        assert passed(lambda: countdown.start(heard), heard) >= 0.29
    assert not countdown.active


def test_what_was_left_when_it_was_stopped_is_forgotten(countdown: Countdown) -> None:
    heard = Heard()
    countdown.start(heard)
    gevent.sleep(0.2)
    countdown.stop()
    assert passed(lambda: countdown.start(heard), heard) >= 0.29


def test_started_again_while_it_counts_it_begins_anew(countdown: Countdown) -> None:
    heard = Heard()
    countdown.start(heard)
    gevent.sleep(0.2)
    assert passed(lambda: countdown.start(heard), heard) >= 0.29


def test_none_at_all_comes_with_the_next_turn() -> None:
    heard = Heard()
    countdown = Countdown(get_hub().loop, 0.0)
    assert passed(lambda: countdown.start(heard), heard) < 0.5
    countdown.close()
