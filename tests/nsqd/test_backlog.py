"""What waits in a channel while the log is being read: nothing that is published meanwhile may be passed over."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import gevent
from gevent.event import Event

from framework.nsqd.backlog import Backlog
from framework.nsqd.store import Batch, ChannelState


def batch(first: int, *bodies: bytes) -> Batch:
    payload = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    return Batch(1, first, len(bodies), 0, 0, payload)


class Log:
    """A broker with a log that answers when it is told to."""

    def __init__(self, found: list[Batch]) -> None:
        self.found = found
        self.recent: dict[tuple[int, int], Batch] = {}
        self.asked, self.answer = Event(), Event()

    def read(self, topic: int, seq: int, max_bytes: int) -> list[Batch]:
        found = [one for one in self.found if one.end > seq]
        self.asked.set()
        self.answer.wait()
        self.answer.clear()
        return found


def test_what_is_published_while_an_empty_log_is_read_is_delivered():
    log = Log([])
    topic = SimpleNamespace(id=1, pumped=100, broker=log)
    channel = SimpleNamespace(topic=topic, kept=True, name="c", serve=lambda: None)
    backlog = Backlog(channel, ChannelState(7, "c", cursor=0))
    assert backlog.loaded() == 0  # a channel that was made before its topic had a message: it looks from 0 on
    log.asked.wait()
    new = batch(100, b"a", b"b", b"c")
    log.recent[1, 100] = new
    topic.pumped = new.end
    backlog.offer(new)
    log.answer.set()
    gevent.sleep(0.01)
    assert backlog.loaded() == backlog.waiting == 3
    assert backlog.piece() == (new, 0, 0)


def test_what_the_log_has_lost_is_waited_for_no_more():
    log = Log([])
    topic = SimpleNamespace(id=1, pumped=100, broker=log)
    channel = SimpleNamespace(topic=topic, kept=True, name="c", serve=lambda: None)
    backlog = Backlog(channel, ChannelState(7, "c", cursor=90, waiting=10))
    assert backlog.loaded() == 0
    log.answer.set()
    gevent.sleep(0.01)
    assert (backlog.loaded(), backlog.waiting, backlog.cursor) == (0, 0, 100)
