"""Who goes on when memory for bodies becomes free, without a look at the clock."""

from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest

from framework.nsqd import underway
from framework.nsqd.underway import FREE_BYTES, Memory, Share


@pytest.fixture(autouse=True)
def nobody_looks_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(underway, "_LOOK_SECONDS", 60.0)
    with gevent.Timeout(10):
        yield


def share(memory: Memory) -> Share:
    return memory.share(lambda: None)


def test_those_that_wait_go_on_beside_the_one_that_may_go_beyond_as_soon_as_there_is_room() -> None:
    memory = Memory(10 * FREE_BYTES)
    first, beyond = share(memory), share(memory)
    first.expect(6 * FREE_BYTES)
    beyond.expect(7 * FREE_BYTES)
    waiting = [gevent.spawn(share(memory).expect, FREE_BYTES + 1) for _ in range(2)]
    gevent.idle()
    assert not any(one.ready() for one in waiting)
    first.end()
    gevent.joinall(waiting, raise_error=True)


@pytest.mark.parametrize(("size", "held"), [(0, 0), (FREE_BYTES, 0), (FREE_BYTES + 1, FREE_BYTES + 1)])
def test_what_is_small_counts_for_nothing(size: int, held: int) -> None:
    memory = Memory(10 * FREE_BYTES)
    one = share(memory)
    for _ in range(2):
        one.expect(size)
        assert (one.size, memory._taken, one.since is not None) == (held, held, held > 0)
    one.end()
    assert (one.size, memory._taken, one.since) == (0, 0, None)


def test_once_that_one_has_its_body_the_next_may_go_beyond() -> None:
    memory = Memory(10 * FREE_BYTES)
    first, beyond = share(memory), share(memory)
    first.expect(8 * FREE_BYTES)
    beyond.expect(8 * FREE_BYTES)
    next_one = gevent.spawn(share(memory).expect, 8 * FREE_BYTES)
    gevent.idle()
    assert not next_one.ready()
    beyond.end()
    next_one.get()


def test_they_go_on_in_the_order_in_which_they_came() -> None:
    memory, went_on = Memory(10 * FREE_BYTES), list[int]()
    first, beyond = share(memory), share(memory)
    first.expect(9 * FREE_BYTES)
    beyond.expect(9 * FREE_BYTES)

    def wait(number: int) -> None:
        share(memory).expect(2 * FREE_BYTES)
        went_on.append(number)

    waiting = [gevent.spawn(wait, number) for number in range(3)]
    gevent.idle()
    assert went_on == []
    first.end()
    beyond.end()
    gevent.joinall(waiting, raise_error=True)
    assert went_on == [0, 1, 2]
