"""What waits in a channel while the log is being read: nothing that is published meanwhile may be passed over."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from framework.nsqd import backlog as backlogs
from framework.nsqd.backlog import Backlog, Found
from framework.nsqd.store import Batch, ChannelState, Correction


def batch(first: int, *bodies: bytes, due: int = 0) -> Batch:
    payload = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    return Batch(1, first, len(bodies), 0, due, payload)


READ = Found([], missing=True)
"""It has to be read from the log."""


class Opened:
    """A channel's backlog, the topic that it is of, and what was written lately."""

    def __init__(self, state: ChannelState) -> None:
        self.topic = SimpleNamespace(id=1, pumped=100)
        self.recent: dict[tuple[int, int], Batch] = {}
        clock = SimpleNamespace(now=lambda: 1000.0)
        self.backlog = Backlog(self.topic, state, kept=True, recent=self.recent, clock=clock, most=10)  # type: ignore[arg-type]


def test_what_is_published_while_an_empty_log_is_read_is_delivered() -> None:
    opened = Opened(ChannelState(7, "c", cursor=0))
    backlog = opened.backlog
    assert backlog.is_low
    assert backlog.fill() == READ  # a channel that was made before its topic had a message: it looks from 0 on
    asked = backlog.ask()
    new = batch(100, b"a", b"b", b"c")
    opened.recent[1, 100] = new
    opened.topic.pumped = new.end
    assert backlog.offer(new) is None
    assert backlog.answer(asked, []) is None
    assert backlog.waiting == 3
    assert backlog.is_low
    assert backlog.fill() is None
    assert backlog.loaded == backlog.waiting == 3
    assert backlog.piece() == (new, 0, 0)


def test_what_the_log_has_lost_is_waited_for_no_more() -> None:
    backlog = Opened(ChannelState(7, "c", cursor=90, waiting=10)).backlog
    assert backlog.fill() == READ
    assert backlog.answer(backlog.ask(), []) is None
    assert (backlog.loaded, backlog.waiting, backlog.cursor) == (0, 0, 100)


def test_the_log_is_asked_once_at_a_time_and_again_after_it_failed() -> None:
    backlog = Opened(ChannelState(7, "c", cursor=90, waiting=10)).backlog
    assert [backlog.fill(), backlog.fill()] == [READ, None]
    assert backlog.answer(backlog.ask(), None) is None
    assert (backlog.waiting, backlog.fill()) == (10, READ)


def test_what_was_emptied_while_it_was_read_does_not_come() -> None:
    opened = Opened(ChannelState(7, "c", cursor=90, waiting=10))
    backlog = opened.backlog
    backlog.fill()
    asked = backlog.ask()
    opened.topic.pumped = 105
    backlog.offer_stored(5)
    backlog.skip()
    opened.topic.pumped = 108
    backlog.offer_stored(3)
    assert backlog.answer(asked, []) is None
    assert (backlog.loaded, backlog.waiting, backlog.cursor) == (0, 3, 105)


def test_a_message_that_is_not_due_is_handed_to_the_channel_and_one_that_is_due_waits_like_others() -> None:
    backlog = Opened(ChannelState(7, "c", cursor=98, waiting=2)).backlog
    backlog.fill()
    found = backlog.answer(backlog.ask(), [batch(98, b"now", due=1000), batch(99, b"later", due=1001)])
    assert found is not None
    assert [(message.seq, message.body, due) for message, due in found.deferred] == [(99, b"later", 1001)]
    assert (backlog.loaded, backlog.waiting) == (1, 1)


def filled(*batches: Batch, waiting: int, cursor: int = 90, **more: Any) -> Opened:
    """One that has read these from the log."""
    opened = Opened(ChannelState(7, "c", cursor=cursor, waiting=waiting, **more))
    opened.backlog.fill()
    assert opened.backlog.answer(opened.backlog.ask(), batches) is None
    return opened


def state(backlog: Backlog) -> tuple[int, int, int]:
    return backlog.waiting, backlog.loaded, backlog.cursor


def test_messages_are_passed_one_after_the_other_and_batch_after_batch() -> None:
    first, second = batch(90, b"a", b"bb", b"ccc"), batch(93, b"d")
    backlog = filled(first, second, waiting=10).backlog
    assert state(backlog) == (10, 4, 90)
    assert backlog.piece() == (first, 0, 0)
    backlog.advance(2, 11)
    assert backlog.piece() == (first, 2, 11)
    assert state(backlog) == (8, 2, 92)
    backlog.advance(1, 18)
    assert backlog.piece() == (second, 0, 0)
    assert state(backlog) == (7, 1, 93)
    backlog.advance(1, 5)
    assert backlog.piece() is None
    assert state(backlog) == (6, 0, 94)
    assert backlog.fill() == READ


def test_a_batch_of_which_some_was_delivered_before_a_restart_begins_behind_that() -> None:
    one = batch(90, b"a", b"bb", b"ccc")
    backlog = filled(batch(80, *[b"x"] * 12), one, waiting=1, cursor=92).backlog
    assert backlog.piece() == (one, 2, 11)
    assert backlog.loaded == 1
    assert backlog.cursor == 92


def test_a_window_is_filled_from_what_was_written_lately_up_to_its_size_and_again_when_half_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlogs, "WINDOW_BYTES", 1000)
    opened = Opened(ChannelState(7, "c", cursor=94, waiting=6))
    backlog = opened.backlog
    for seq in range(94, 100):
        opened.recent[1, seq] = batch(seq, b"x" * 196)  # 500 bytes with what it takes besides
    assert backlog.is_low
    assert backlog.fill() is None
    assert state(backlog) == (6, 2, 94)
    assert not backlog.is_low
    backlog.advance(1, 200)
    assert not backlog.is_low  # half of it is there
    assert backlog.fill() is None
    assert backlog.loaded == 2
    backlog.advance(1, 200)
    backlog.advance(1, 200)
    assert backlog.is_low
    for _ in range(3):
        backlog.fill()
        backlog.advance(1, 200)
    assert state(backlog) == (0, 0, 100)
    assert not backlog.is_low  # there is no more


def test_what_is_held_in_memory_alone_is_bounded_but_for_the_first_and_what_is_deferred() -> None:
    backlog = in_memory(ChannelState(7, "c", cursor=0))
    assert not backlog.is_low
    backlog.offer(batch(10, *[b"x"] * 11))  # more than may be held, and nothing is
    assert state(backlog) == (11, 11, 10)
    backlog.offer(batch(21, b"dropped"))
    assert state(backlog) == (11, 11, 10)
    backlog.offer(batch(22, b"dropped", due=1000))
    found = backlog.offer(batch(23, b"later", due=1001))
    assert found is not None
    assert [(message.seq, due) for message, due in found.deferred] == [(23, 1001)]
    assert not found.missing
    assert state(backlog) == (11, 11, 10)
    backlog.advance(2, 10)
    assert backlog.offer(batch(24, b"fits")) is None  # the tenth
    assert state(backlog) == (10, 10, 12)
    backlog.offer(batch(25, b"dropped"))
    assert state(backlog) == (10, 10, 12)


def in_memory(state: ChannelState) -> Backlog:
    clock = SimpleNamespace(now=lambda: 1000.0)
    return Backlog(SimpleNamespace(id=1, pumped=100), state, kept=False, recent={}, clock=clock, most=10)  # type: ignore[arg-type]


def test_of_what_is_held_in_memory_alone_nothing_is_waited_for() -> None:
    backlog = in_memory(ChannelState(7, "c", cursor=0))
    assert backlog.cursor == 100
    backlog.pass_over(0, 50)
    backlog.offer(batch(10, b"x"))
    assert backlog.cursor == 10


def test_what_was_finished_early_is_told_once_the_cursor_has_passed_it() -> None:
    backlog = filled(batch(90, b"a", b"b", b"c"), waiting=10, finished_early=[89, 90, 91]).backlog
    assert backlog.passed() == [89]
    assert backlog.passed() == []
    backlog.advance(1, 5)
    assert backlog.passed() == [90]
    assert backlog.finished_early == [91]


def test_what_is_too_old_is_passed_over_and_counted() -> None:
    old, older, young = (replace(batch(seq, b"a", b"b"), ts=ts) for seq, ts in ((90, 9), (92, 8), (94, 10)))
    backlog = filled(old, older, young, waiting=10).backlog
    backlog.advance(1, 5)
    assert backlog.drop_older(10) == 3
    assert state(backlog) == (6, 2, 94)
    assert backlog.piece() == (young, 0, 0)
    assert backlog.drop_older(10) == 0


def test_nothing_is_left_of_batches_that_are_all_too_old() -> None:
    backlog = filled(batch(90, b"a", b"b"), batch(92, b"c"), batch(93, b"d", b"e", b"f"), waiting=10).backlog
    backlog.advance(1, 5)
    assert backlog.drop_older(1) == 5
    assert backlog.piece() is None
    assert state(backlog) == (4, 0, 96)


@pytest.mark.parametrize(("window", "loaded"), [(1000, 2), (1001, 3)])
def test_a_window_takes_batches_until_it_has_its_bytes(monkeypatch: pytest.MonkeyPatch, window: int, loaded: int) -> None:
    monkeypatch.setattr(backlogs, "WINDOW_BYTES", window)
    opened = Opened(ChannelState(7, "c", cursor=96, waiting=4))
    opened.recent.update({(1, seq): batch(seq, b"x" * 196) for seq in range(96, 100)})
    opened.backlog.fill()
    assert opened.backlog.loaded == loaded


def test_it_is_low_when_less_than_half_of_its_bytes_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlogs, "WINDOW_BYTES", 1000)
    opened = Opened(ChannelState(7, "c", cursor=90, waiting=10))
    opened.recent[1, 90] = batch(90, b"x" * 195)  # 499 bytes with what it takes besides
    opened.backlog.fill()
    assert opened.backlog.is_low


def test_what_the_topic_dropped_before_it_handed_it_over_is_not_delivered_though_the_log_has_it() -> None:
    backlog = Opened(ChannelState(7, "c", cursor=90, waiting=4)).backlog
    backlog.pass_over(90, 92)
    assert backlog.cursor == 92
    backlog.pass_over(94, 96)
    backlog.fill()
    batches = [batch(92, b"a", b"b"), batch(94, b"dropped"), batch(95, b"dropped"), batch(96, b"c"), batch(97, b"d")]
    assert backlog.answer(backlog.ask(), batches) is None
    assert backlog.loaded == 4
    backlog.advance(2, 10)
    assert backlog.piece() == (batches[3], 0, 0)
    assert backlog.cursor == 96


def test_nothing_of_what_was_emptied_is_counted_again() -> None:
    opened = filled(batch(90, b"a", b"b", b"c"), waiting=10, beyond_cursor={97}, finished_early=[95])
    backlog = opened.backlog
    backlog.advance(1, 5)
    backlog.pass_over(95, 97)
    backlog.skip()
    assert state(backlog) == (0, 0, 100)
    assert backlog.passed() == []
    assert not backlog.is_low
    new = batch(100, b"x", b"y")
    opened.recent[1, 100], opened.topic.pumped = new, 102
    backlog.offer_stored(2)
    assert backlog.piece() == (new, 0, 0)
    assert state(backlog) == (2, 2, 100)


def test_a_deferred_message_that_was_taken_care_of_before_a_restart_does_not_come_twice() -> None:
    backlog = filled(batch(97, b"deferred", due=1001), batch(98, b"due by now", due=999), batch(99, b"x"), waiting=1,
                     cursor=97, beyond_cursor={97, 98}).backlog  # fmt: skip
    assert state(backlog) == (1, 1, 99)


@pytest.mark.parametrize(
    ("found", "waiting"),
    [
        (Correction(1, 94, 97), 7),
        (Correction(1, 94, 97, there=True), 13),
        (Correction(1, 80, 95), 8),  # two of these are at hand, and are delivered
        (Correction(1, 97, 120), 7),  # what comes behind is counted when it comes
        (Correction(1, 80, 93), 10),
        (Correction(1, 100, 120), 10),
        (Correction(1, 96, 99, lost=True), 8),  # of 97 nobody has counted that it waits
        (Correction(1, 96, 99), 7),
        (Correction(1, 93, 120, there=False), 3),
    ],
)
def test_what_the_log_has_less_or_more_of_is_counted_where_it_was_not_read_yet(found: Correction, waiting: int) -> None:
    backlog = filled(batch(90, b"a", b"b", b"c"), waiting=10, beyond_cursor={97}).backlog
    backlog.correct(found)
    assert backlog.waiting == waiting


def test_what_waits_is_never_less_than_what_is_at_hand() -> None:
    backlog = filled(batch(90, b"a", b"b", b"c"), waiting=4).backlog
    backlog.correct(Correction(1, 93, 99))
    assert state(backlog) == (3, 3, 90)


def test_what_was_lost_is_not_taken_for_deferred_when_it_is_there_after_all() -> None:
    opened = Opened(ChannelState(7, "c", cursor=98, waiting=1, beyond_cursor={98}))
    opened.backlog.correct(Correction(1, 98, 99, lost=True))
    opened.backlog.fill()
    assert opened.backlog.answer(opened.backlog.ask(), [batch(98, b"due", due=1), batch(99, b"x")]) is None
    assert opened.backlog.loaded == 2


def test_a_channel_begins_where_its_topic_says_and_never_before() -> None:
    backlog = Opened(ChannelState(7, "c", cursor=0)).backlog
    backlog.start_at(40)
    backlog.start_at(30)
    assert backlog.cursor == 40


def test_the_log_gives_nothing_that_the_topic_has_not_handed_over() -> None:
    backlog = filled(batch(99, b"a"), batch(100, b"not yet"), waiting=1, cursor=99).backlog
    assert state(backlog) == (1, 1, 99)


def test_what_came_while_the_log_was_read_is_all_that_waits_where_the_log_had_nothing() -> None:
    opened = Opened(ChannelState(7, "c", cursor=90, waiting=10))
    backlog = opened.backlog
    opened.topic.pumped = 102
    assert backlog.offer_stored(2) == READ
    asked = backlog.ask()
    opened.topic.pumped = 105
    assert backlog.offer_stored(3) is None
    assert backlog.answer(asked, []) is None
    assert state(backlog) == (3, 0, 102)


@pytest.mark.parametrize("lately", [True, False], ids=["written lately", "read from the log"])
@pytest.mark.parametrize("first", [97, 96], ids=["to the end", "and not to the end"])
def test_once_all_that_waits_is_at_hand_it_is_counted_anew(first: int, lately: bool) -> None:
    """An index that was made anew counts what was finished before its record was moved."""
    opened = Opened(ChannelState(7, "c", cursor=first, waiting=10))
    found = batch(first, b"a", b"b", b"c")
    if lately:
        opened.recent[1, first] = found
        opened.backlog.fill()
    else:
        opened.backlog.fill()
        opened.backlog.answer(opened.backlog.ask(), [found])
    assert opened.backlog.loaded == 3
    assert opened.backlog.waiting == (3 if first == 97 else 10)
