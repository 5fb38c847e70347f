"""Waiting until servers have read what was said: how long, and for whom. The servers are stand-ins that answer when told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import gevent
import pytest

from framework.transports.nats_route.reading import await_readers
from framework.transports.nats_route.route import Route


class Answering:
    """A route whose server has owed an answer for ``owed`` seconds, and reads after ``delay`` more; None: it does not."""

    def __init__(self, owed: float, delay: float | None) -> None:
        self.owed = owed
        self._delay = delay
        self.has_read = False

    def ping(self, then: Callable[[bool], None]) -> None:
        if self._delay is not None:
            gevent.spawn_later(self._delay, self._read, then)

    def _read(self, then: Callable[[bool], None]) -> None:
        self.has_read = True
        self.owed = 0.0
        then(True)


def waited_for(*routes: Answering, timeout: float) -> list[bool]:
    """Which of them had read when the waiting was over."""
    await_readers([cast(Route, one) for one in routes], timeout)
    return [one.has_read for one in routes]


@pytest.mark.parametrize("timeout", [0.9, 20.0])
def test_a_server_that_still_has_time_is_waited_for_whether_it_is_much_or_little(timeout: float) -> None:
    assert waited_for(Answering(0.0, 0.02), Answering(0.0, 0.01), timeout=timeout) == [True, True]


def test_the_slowest_is_waited_for() -> None:
    assert waited_for(Answering(0.0, 0.0), Answering(0.0, 0.1), Answering(0.0, 0.0), timeout=20.0) == [True, True, True]


def test_one_that_has_owed_an_answer_for_as_long_is_waited_for_no_more() -> None:
    assert waited_for(Answering(5.0, None), timeout=5.0) == [False]


def test_beside_one_that_stands_still_the_others_are_waited_for() -> None:
    assert waited_for(Answering(5.0, None), Answering(0.0, 0.05), timeout=5.0) == [False, True]


def test_where_there_is_no_route_nothing_is_waited_for() -> None:
    assert waited_for(timeout=20.0) == []
