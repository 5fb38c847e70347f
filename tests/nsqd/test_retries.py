"""What waits in a channel for another try, by itself: when it comes, what of it is in memory, and what must go."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from framework.nsqd import retries
from framework.nsqd.lease import Message
from framework.nsqd.retries import Retries
from framework.nsqd.store import ChannelSave, Retry
from framework.nsqd.store.index import FINISHED
from framework.nsqd.unsaved import Changes, Unsaved


class Clock:
    """Both clocks, and an alarm that notes when it is to ring."""

    def __init__(self) -> None:
        self.now = 100.0
        self.wall = 5_000
        self.alarms: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return self.wall


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retries, "time", clock)
    alarm = SimpleNamespace(set=clock.alarms.append, cancel=clock.alarms.clear)
    monkeypatch.setattr(retries, "Alarm", lambda rung: alarm)
    return clock


def waiting(*messages: Message, kept: bool = True) -> Retries:
    """Retries in which these are ready."""
    found = Retries(kept, lambda: None)
    for one in messages:
        found.keep_body(one)
        found.ready.append(one)
    return found


def message(seq: int, body: bytes | None = b"body", ts: int = 0) -> Message:
    return Message(seq, ts, 1, body)


def numbers(messages: object) -> list[int]:
    return [one.seq for one in messages]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("clock")
def test_bodies_are_kept_up_to_a_limit_where_the_log_has_them_and_all_where_it_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_WAITING_BYTES", 10)
    full = waiting(message(1, b"1234567890"), message(2, b"1"), message(3, b""), message(4, None))
    assert [one.body for one in full.ready] == [b"1234567890", None, b"", None]
    assert full.bytes_in_memory == 10
    full.take_first(b"1234567890")
    assert (numbers(full.ready), full.bytes_in_memory) == ([2, 3, 4], 0)
    memory = waiting(message(1, b"1234567890"), message(2, b"1"), kept=False)
    assert [one.body for one in memory.ready] == [b"1234567890", b"1"]
    assert memory.bytes_in_memory == 11


def test_what_is_due_comes_in_the_order_of_its_time_and_no_more_than_asked_for(clock: Clock) -> None:
    some = waiting()
    for seq, delay in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 2.0)):
        some.defer(message(seq), delay)
    assert clock.alarms == [103.0, 101.0, 102.0, 102.0]
    assert some.bytes_in_memory == 16
    clock.now = 100.9
    assert some.due(10) == []
    clock.now = 102.0
    clock.alarms.clear()
    assert numbers(some.due(2)) == [2, 3]
    assert clock.alarms == [102.0]  # at once, for the other
    assert numbers(some.due(2)) == [4]
    clock.now, clock.alarms = 103.0, []
    assert numbers(some.due(2)) == [1]
    assert (clock.alarms, some.deferred, some.due(2)) == ([], [], [])


@pytest.mark.usefixtures("clock")
def test_what_the_log_has_lost_is_waited_for_no_longer_but_for_what_is_in_memory() -> None:
    some = waiting(message(1, None), message(2), message(3, None), message(9, None))
    for seq, body, delay in ((4, None, 4.0), (5, b"x", 3.0), (6, None, 2.0), (7, None, 1.0)):
        some.defer(message(seq, body), delay)
    assert sorted(numbers(some.give_up({1, 2, 5, 7}))) == [1, 7]
    assert numbers(some.ready) == [2, 3, 9]
    assert numbers(entry[2] for entry in sorted(some.deferred)) == [6, 5, 4]
    assert some.deferred[0][2].seq == 6
    assert some.give_up({2, 5}) == []


@pytest.mark.usefixtures("clock")
def test_the_heap_of_what_waits_stays_one_when_some_of_it_is_lost() -> None:
    some = waiting()
    for seq in (1, 5, 2, 6, 7, 3, 4):
        some.defer(message(seq, None), float(seq))
    assert numbers(some.give_up({1})) == [1]
    found = []
    retries.time.now = 200.0  # type: ignore[attr-defined]
    while due := some.due(1):
        found += numbers(due)
    assert found == [2, 3, 4, 5, 6, 7]


def test_what_is_too_old_goes_and_the_others_keep_their_order(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_LOOK", 4)
    some = waiting(message(1, ts=9), message(2, ts=10), message(3, ts=0), message(4, None, ts=1), message(5, ts=1))
    assert numbers(some.older_than(10)) == [1, 4]
    assert numbers(some.ready) == [2, 3, 5]  # when 3 was published is not known yet; 5 has its turn
    assert some.bytes_in_memory == 12
    assert numbers(some.older_than(10)) == [5]
    assert some.older_than(10) == []
    assert numbers(some.ready) == [2, 3]
    assert some.bytes_in_memory == 8
    young, old = message(6, ts=10), message(7, ts=9)
    assert (some.is_old(young), some.is_old(old)) == (False, True)
    clock.wall = 4_999  # set back
    assert not some.is_old(old)


@pytest.mark.usefixtures("clock")
def test_before_anything_was_too_old_nothing_is() -> None:
    assert not waiting().is_old(message(1, ts=0))


def test_nothing_is_left_of_what_was_emptied_not_even_what_the_log_is_asked_for(clock: Clock) -> None:
    some = waiting(message(1, None), message(2))
    some.defer(message(3), 5.0)
    generation, wanted = some.without_body()
    some.clear()
    assert (list(some.ready), some.deferred, some.bytes_in_memory, clock.alarms) == ([], [], 0, [])
    some.take_bodies(generation, wanted, {1: (7, b"late")})
    assert (wanted[0].body, some.bytes_in_memory) == (None, 0)
    again, _ = some.without_body()
    assert again != generation
    some.clear()
    assert some.without_body()[0] not in (again, generation)


@pytest.mark.usefixtures("clock")
def test_bodies_are_read_for_the_next_that_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FETCH", 4)
    some = waiting(message(1, None), message(2, b"had"), message(3, None), message(4, None), message(5, None))
    generation, wanted = some.without_body()
    assert numbers(wanted) == [1, 3, 4]
    wanted[2].body = b"came meanwhile"
    some.take_bodies(generation, wanted, {1: (77, b"one"), 3: None, 4: (78, b"another")})
    assert [(one.ts, one.body) for one in some.ready] == [(77, b"one"), (0, b"had"), (0, None), (0, b"came meanwhile"), (0, None)]
    assert some.bytes_in_memory == 6


# --- what the storage has yet to learn


def save(changes: Changes) -> ChannelSave:
    return ChannelSave(1, 2, "c", 0, [], *changes)


def test_a_save_takes_each_change_once_and_the_last_word_on_a_message_counts() -> None:
    unsaved = Unsaved()
    for seq in (1, 2, 3, 4):
        unsaved.put(message(seq), 0)
    unsaved.drop(2)
    unsaved.drop(5)
    unsaved.put(again := message(5), 500)
    unsaved.finish_early(3)
    unsaved.finish_early(6)
    assert again.has_row
    changes = unsaved.take([6, 7])
    assert changes == ({1: Retry(0, 1), 3: Retry(FINISHED, 0), 4: Retry(0, 1), 5: Retry(500, 1)}, {2, 6, 7}, False)
    assert unsaved.take([]) == ({}, set(), False)


def test_what_was_emptied_leaves_nothing_to_save_but_that() -> None:
    unsaved = Unsaved()
    unsaved.put(message(1), 0)
    unsaved.drop(2)
    unsaved.clear()
    unsaved.put(message(3), 0)
    assert unsaved.take([]) == ({3: Retry(0, 1)}, set(), True)
    assert unsaved.take([]) == ({}, set(), False)


def test_a_save_that_failed_comes_with_the_next_unless_it_is_outdated() -> None:
    unsaved = Unsaved()
    for seq in (1, 2, 3):
        unsaved.put(message(seq), 0)
    unsaved.drop(4)
    unsaved.drop(5)
    failed = save(unsaved.take([]))
    unsaved.drop(2)
    unsaved.put(message(3), 300)
    unsaved.put(message(4), 400)
    unsaved.give_back(failed)
    assert unsaved.take([]) == ({1: Retry(0, 1), 3: Retry(300, 1), 4: Retry(400, 1)}, {2, 5}, False)


@pytest.mark.parametrize("emptied_before", [True, False])
def test_of_a_failed_save_nothing_is_kept_where_all_was_emptied_since(emptied_before: bool) -> None:
    unsaved = Unsaved()
    if emptied_before:
        unsaved.clear()
    unsaved.put(message(1), 0)
    failed = save(unsaved.take([]))
    if not emptied_before:
        unsaved.clear()
    unsaved.give_back(failed)
    assert unsaved.take([]) == ({1: Retry(0, 1)} if emptied_before else {}, set(), True)
