"""All nsqlookupds are asked at once, and one that is silent holds up nobody while another answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from gevent.event import Event

from framework.errors import BrokerUnreachable
from framework.transports.nsq.lookups import Lookups


class Played:
    """An nsqlookupd."""

    timeout = 0.0

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers = Event()
        self.down = False
        self.asked = 0

    def nodes(self) -> Any:
        self.asked += 1
        if self.down:
            raise BrokerUnreachable(f"{self.name} did not answer")
        self.answers.wait()
        return [self.name]


@pytest.fixture
def soon() -> Iterator[None]:
    with gevent.Timeout(20):
        yield


@pytest.mark.usefixtures("soon")
def test_one_that_was_silent_is_not_waited_for_until_it_answers_again() -> None:
    well, frozen = Played("well"), Played("frozen")
    lookups = Lookups([well, frozen])  # type: ignore[list-item]
    well.answers.set()
    frozen.down = True
    assert lookups.producers() == [["well"]]
    frozen.down = False  # and still it does not answer
    assert lookups.producers() == [["well"]]
    frozen.answers.set()
    while lookups.producers() != [["well"], ["frozen"]]:
        gevent.sleep(0.001)
    frozen.answers.clear()
    gevent.spawn_later(0.1, frozen.answers.set)
    assert lookups.producers() == [["well"], ["frozen"]]  # it has its time again


@pytest.mark.usefixtures("soon")
def test_one_that_is_only_slow_is_waited_for() -> None:
    well, slow = Played("well"), Played("slow")
    well.answers.set()
    gevent.spawn_later(0.1, slow.answers.set)
    assert Lookups([well, slow]).producers() == [["well"], ["slow"]]  # type: ignore[list-item]


@pytest.mark.usefixtures("soon")
def test_a_silent_one_is_asked_again_only_when_it_has_had_its_time() -> None:
    well, frozen = Played("well"), Played("frozen")
    frozen.timeout = 60.0
    lookups = Lookups([well, frozen])  # type: ignore[list-item]
    well.answers.set()
    frozen.down = True
    for _ in range(3):
        lookups.producers()
    assert (well.asked, frozen.asked) == (3, 1)


@pytest.mark.usefixtures("soon")
def test_where_none_else_answers_a_silent_one_has_a_moment_and_no_more() -> None:
    one, other = Played("one"), Played("other")
    lookups = Lookups([one, other])  # type: ignore[list-item]
    one.down = other.down = True
    with pytest.raises(BrokerUnreachable, match="one did not answer; other did not answer"):
        lookups.producers()
    one.down = False
    with pytest.raises(BrokerUnreachable, match="one did not answer; other did not answer"):
        lookups.producers()  # still frozen, both as far as is known
    one.answers.set()
    assert lookups.producers() == [["one"]]
    assert Lookups([]).producers() == []
