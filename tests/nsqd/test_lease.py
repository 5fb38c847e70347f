"""Leases of one consumer: touched up to what is the most, and no further."""

from __future__ import annotations

import time

import gevent
import pytest

from framework.nsqd.lease import Leases, Message


def test_a_touch_reaches_no_further_than_the_most_from_delivery() -> None:
    ended: list[bytes] = []
    leases = Leases(60.0, 100.0, lambda _, message: ended.append(message.id))
    now = time.monotonic()
    early, late = (Message(seq, 0, 1, b"x", delivered=at, deadline=now + 1) for seq, at in ((1, now), (2, now - 99.9)))
    leases.messages = {one.id: one for one in (early, late)}
    assert leases.touch(early.id)
    assert leases.touch(late.id)
    assert not leases.touch(b"%016x" % 3)
    assert early.deadline == pytest.approx(now + 60.0, abs=1.0)
    assert late.deadline == now - 99.9 + 100.0
    with gevent.Timeout(20):
        while not ended:
            gevent.sleep(0.01)
    assert ended == [late.id]
    assert list(leases.messages) == [early.id]
