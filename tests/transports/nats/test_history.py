"""Whether a stream has other messages by now under the numbers that it delivered, of a store that is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import BrokerError, FrameworkError, TryLater
from framework.transports.contract import Limits
from framework.transports.nats.connection import JetStreamConnection
from framework.transports.nats.history import MOST, NEWEST, History, Mark

OLD, NEW = 5_000_000_000, 9_000_000_000
"""When messages were stored, in ns."""


class Store:
    """``streams.Api``: number -> when it was stored."""

    def __init__(self, *messages: tuple[int, int]) -> None:
        self.messages = dict(messages)
        self.looks: list[int] = []
        self.fails: Exception | None = None

    def stored(self, stream: str, sequence: int) -> int | None:
        self.looks.append(sequence)
        if self.fails is not None:
            raise self.fails
        return self.messages.get(sequence)

    def stored_from(self, stream: str, sequence: int) -> tuple[int, int] | None:
        self.looks.append(sequence)
        return min(((at, when) for at, when in self.messages.items() if at >= sequence), default=None)

    def state(self, stream: str) -> Any:
        return SimpleNamespace(last_seq=max(self.messages, default=0))


def is_older(store: Store, *delivered: int) -> bool:
    history = History()
    history.note([Mark(one, OLD) for one in delivered])
    api: Any = store
    return history.contradicts(api, "S")


@pytest.mark.parametrize(("messages", "delivered", "older"), [
    ([(1, OLD), (2, OLD), (3, OLD)], [1, 2, 3], False),  # as it was
    ([(1, OLD), (2, OLD), (3, NEW)], [1, 2, 3], True),  # the newest is another
    ([(1, OLD), (2, OLD)], [1, 2, 3], True),  # it ends before what was delivered
    ([(1, OLD), (2, NEW), (4, NEW)], [1, 2, 3], True),  # of those before, one is another
    ([(1, OLD), (2, OLD), (4, NEW)], [1, 2, 3], False),  # one was dropped: the one before answers for all
    ([(4, NEW)], [1, 2, 3], False),  # all were dropped
    ([(5, NEW)], [5], True), ([(5, OLD + 1_000_000)], [5], False), ([(5, OLD + 1_000_001)], [5], True),
    ([], [], False),
])  # fmt: skip
def test_a_store_that_has_other_messages_under_their_numbers_is_older(
    messages: list[tuple[int, int]], delivered: list[int], older: bool
) -> None:
    assert is_older(Store(*messages), *delivered) is older


def test_the_newest_that_is_there_answers_for_all_before_it() -> None:
    store = Store((1, NEW), (9, OLD))
    assert not is_older(store, 1, 9)
    assert store.looks == [9]


def test_what_was_delivered_before_those_that_were_dropped_is_looked_for_from_the_first_on() -> None:
    store = Store((3, NEW), (30, NEW))
    assert is_older(store, *range(1, 21))
    assert store.looks == [20, 19, 18, 17, 1, 3]


def test_numbers_before_the_next_one_that_is_there_are_passed_over() -> None:
    store = Store((15, NEW), (30, NEW))
    assert not is_older(store, *range(1, 10), 20)
    assert store.looks == [20, 9, 8, 7, 1, 20]


@pytest.mark.parametrize(("count", "uncertain"), [(MOST - 2, False), (MOST - 1, True)])
def test_where_too_many_would_have_to_be_looked_at_nothing_is_certain(count: int, uncertain: bool) -> None:
    history = History()
    last = count + NEWEST
    history.note([Mark(one, OLD) for one in range(1, count + 1)])
    history.note([Mark(one, OLD) for one in range(last - NEWEST + 1, last + 1)])
    history._newest = {mark for mark in history._newest if mark.sequence > count}
    store: Any = Store(*((one, OLD) for one in range(1, count + 1)), (last + 1, NEW))
    assert history.contradicts(store, "S") is uncertain


def test_what_is_forgotten_contradicts_nothing() -> None:
    history, store = History(), Store((1, NEW))
    api: Any = store
    history.note([Mark(1, OLD)])
    assert history.contradicts(api, "S")
    history.forget()
    assert not history.contradicts(api, "S")


def test_of_each_kind_the_newest_are_looked_for() -> None:
    history, store = History(), Store((1, NEW), (50, NEW), (99, NEW))
    api: Any = store
    history.note([Mark(one, OLD) for one in range(10, 20)], [Mark(one, OLD) for one in range(30, 33)])
    assert not history.contradicts(api, "S")
    assert store.looks[:7] == [32, 31, 30, 19, 18, 17, 16]


@pytest.mark.parametrize(("error", "raised"), [(BrokerError("no", ""), False), (TryLater("later", ""), True)])
def test_who_may_not_look_knows_nothing_and_a_server_that_is_busy_is_asked_again(error: FrameworkError, raised: bool) -> None:
    store = Store((1, NEW))
    store.fails = error
    if raised:
        with pytest.raises(TryLater):
            is_older(store, 1)
    else:
        assert not is_older(store, 1)


@pytest.mark.parametrize(("lease", "closed", "told"), [(30.0, False, 0), (20.0, False, 1), (20.0, True, 0)])
def test_a_lease_that_is_another_by_now_is_gone_by_and_told_once(
    lease: float, closed: bool, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    did: list[Any] = []
    connection: Any = SimpleNamespace(
        limits=Limits(30.0, 600.0, 100), _closed=closed, _pulling=SimpleNamespace(longest=0),
        _leases=SimpleNamespace(change=did.append),
        _guard=SimpleNamespace(close=lambda: did.append("close"), begin=lambda: did.append("begin")),
    )  # fmt: skip
    found: Any = SimpleNamespace(lease=lease, name="billing", config=SimpleNamespace(max_expires=7))
    for _ in range(2):
        JetStreamConnection.go_by(connection, found)
    assert (connection._pulling.longest, len(caplog.records)) == (7, told)
    assert did == [lease, "close", "begin"] * told
    assert connection.limits.lease == (20.0 if told else 30.0)
