"""What waits in a channel while the log is being read: nothing that is published meanwhile may be passed over."""

from __future__ import annotations

import struct
from types import SimpleNamespace

from framework.nsqd.backlog import Backlog, Found
from framework.nsqd.store import Batch, ChannelState


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
