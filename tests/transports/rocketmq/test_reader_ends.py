"""A connection by PULL, on paper: when it lets its queues go, and how it ends."""

from __future__ import annotations

from threading import Thread
from time import monotonic
from typing import Any

import gevent
import pytest

from framework.errors import AlreadySettled, BrokerUnreachable
from framework.transports.rocketmq import pulling
from framework.transports.rocketmq.queues import PAUSED, Reading
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.paper import GROUP, Member, Reader

PULL, COMMIT, BACK = Request.PULL_MESSAGE, Request.UPDATE_CONSUMER_OFFSET, Request.CONSUMER_SEND_MSG_BACK


# --- queues ------------------------------------------------------------------------------------------------


def test_a_queue_that_is_anothers_is_let_go_when_nothing_of_it_is_in_flight(reader: Reader) -> None:
    first, second = reader.taken(2)
    reader.paper.turn()
    reader.reading.leaving = True
    looks = reader.member.looks
    reader.connection.finish(first)
    assert reader.member.looks == looks
    assert not reader.connection.let_go(reader.reading)
    reader.connection.finish(second)
    assert reader.member.looks == looks + 1
    assert reader.connection.let_go(reader.reading) is not reader.reading.telling


@pytest.mark.parametrize(("telling", "sent_back", "idle", "goes"), [
    (False, 0, True, True), (True, 0, True, False), (False, 1, True, False), (False, 0, False, False),
])  # fmt: skip
def test_a_queue_is_let_go_when_nothing_is_to_be_said_of_it(
    telling: bool, sent_back: int, idle: bool, goes: bool, reader: Reader
) -> None:
    reading: Reading = reader.reading
    reading.telling, reading.sent_back = telling, sent_back
    if not idle:
        reading.took(0)
    assert reader.connection.let_go(reading) is goes


def test_a_connection_that_closes_does_not_wait_for_what_is_in_flight(reader: Reader) -> None:
    reader.taken(1, granted=1)
    reader.connection.close()
    assert reader.connection.let_go(reader.reading)


def test_it_wants_queues_until_it_is_granted_nothing_for_a_while(reader: Reader) -> None:
    connection = reader.connection
    assert connection._timer.active, "it may never be granted anything"
    connection._idle_since = monotonic() - PAUSED
    assert not connection.wants_queues
    looks = reader.member.looks
    connection.grant(1)
    assert (connection.wants_queues, reader.member.looks) == (True, looks + 1)
    connection.grant(2)
    assert reader.member.looks == looks + 1, "it had them already"
    connection._look()
    assert (connection._timer.active, connection._idle_since < monotonic() - PAUSED) == (False, True)
    connection.grant(0)
    assert connection.wants_queues, "it may be granted something in a moment"
    assert connection._timer.active
    connection._idle_since = monotonic() - PAUSED
    connection.grant(0)
    assert not connection.wants_queues
    connection._look()
    assert reader.member.looks == looks + 2


@pytest.mark.parametrize("end", ["drain", "close"])
def test_one_that_ends_wants_no_queues_and_takes_no_grant(end: str, reader: Reader) -> None:
    reader.connection.grant(5)
    looks = reader.member.looks
    getattr(reader.connection, end)()
    assert not reader.connection.wants_queues
    assert reader.member.looks == looks + 1
    reader.connection.grant(5)
    assert (reader.connection.granted, reader.turn(PULL)) == (0, [])


def test_only_changes_of_its_own_group_are_looked_at(reader: Reader) -> None:
    reader.connection.others_changed("other")
    assert reader.member.looks == 0
    reader.connection.others_changed(GROUP)
    assert reader.member.looks == 1


# --- the end -----------------------------------------------------------------------------------------------


def test_it_says_once_that_it_is_drained_and_settles_on(reader: Reader) -> None:
    first, second = reader.taken(2)
    reader.connection._look()
    reader.paper.turn()
    assert (reader.connection._timer.active, reader.paper.wanted) == (False, 0)
    reader.connection.drain()
    assert reader.paper.wanted == 1
    reader.paper.turn()
    reader.connection.drain()
    reader.connection.finish(first)
    reader.paper.turn()
    assert reader.receiver.drains == 1
    reader.connection.requeue(second, 0.0)
    assert len(reader.turn(BACK)) == 1
    assert reader.connection._timer.active


def test_a_close_sends_back_what_would_come_again_with_what_is_settled_behind_it(reader: Reader) -> None:
    """And leaves what lies behind all of that where it is."""
    messages = reader.taken(4, granted=4)
    reader.connection.finish(messages[2])
    reader.paper.turn()
    reader.connection.close()
    back = reader.turn(BACK)
    assert [one.fields["delayLevel"] for one in back] == ["1", "1"]
    assert list(reader.connection.in_flight) == [messages[3]]
    for one in back:
        one.then(Frame(Answer.SUCCESS), 0.0)
    assert reader.reading.mark == 3


def test_a_close_is_over_when_all_is_said_and_its_queues_are_let_go(reader: Reader) -> None:
    (message,) = reader.taken(1, granted=1)
    reader.connection.finish(message)
    reader.connection.close()
    reader.connection.balanced()
    gevent.sleep(0.01)
    assert reader.receiver.closings == 0
    reader.connection._look()
    assert reader.connection._timer.active
    reader.paper.turn()
    reader.connection.readings.clear()
    reader.connection.balanced()
    gevent.sleep(0)
    assert reader.receiver.closings == 0, "the socket has not taken it"
    reader.paper.flush()
    reader.connection.readings[reader.reading.place] = reader.reading
    reader.connection.balanced()
    gevent.sleep(0.01)
    assert reader.receiver.closings == 0, "a queue is not let go of"
    reader.connection.readings.clear()
    reader.connection.balanced()
    gevent.sleep(0.01)
    assert (reader.receiver.closings, reader.member.broke) == (1, False)


def test_a_second_close_changes_nothing(reader: Reader) -> None:
    reader.taken(2)
    reader.connection.close()
    looks = reader.member.looks
    reader.connection.close()
    reader.connection.drain()
    assert reader.member.looks in (looks, looks + 1)
    reader.connection.lost(None)
    reader.connection.close()
    reader.connection.drain()
    reader.connection.lost(None)
    assert (reader.receiver.closings, reader.receiver.drains) == (1, 0)


def test_a_close_that_gets_no_answer_is_over_soon(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "CLOSE_FLUSH", 0.01)
    made = Reader()
    made.taken(1)
    made.connection.close()
    gevent.sleep(0.05)
    assert (made.receiver.closings, made.member.broke, made.receiver.tally.lease_lost) == (1, False, 1)


def test_a_session_that_is_over_when_it_is_made_makes_none() -> None:
    stopped: list[bool] = []

    class Over(Member):
        def __init__(self, session: Any, *_: Any, **__: Any) -> None:
            super().__init__()
            session.error = BrokerUnreachable("gone")

        def stop(self, *, broke: bool) -> None:
            stopped.append(broke)

    with pytest.raises(BrokerUnreachable, match="gone"):
        Reader(membership=Over)
    assert stopped == [True]


def test_touch_renews_what_is_in_flight(reader: Reader) -> None:
    first, second = reader.taken(2)
    assert reader.connection.in_flight[first] == 0.0
    reader.connection.touch(first)
    assert monotonic() - reader.connection.in_flight[first] < 10
    assert list(reader.connection.in_flight) == [second, first]
    reader.connection.finish(first)
    with pytest.raises(AlreadySettled):
        reader.connection.touch(first)


def test_what_is_settled_in_another_thread_is_said_by_the_hub(reader: Reader) -> None:
    """While it is blocked; a session is spoken to by its own thread alone."""
    first, second = reader.taken(2)
    reader.paper.turn()
    (thread := Thread(target=reader.connection.finish, args=(first,))).start()
    thread.join()
    assert reader.paper.wanted == 0
    reader.connection.finish(second)
    assert reader.paper.wanted == 1
