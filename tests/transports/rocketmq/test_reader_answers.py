"""A connection by PULL, on paper: what it makes of each answer."""

from __future__ import annotations

from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import BrokerUnreachable
from framework.transports.rocketmq import requests
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.paper import GROUP, Reader, refused

PULL, COMMIT, BACK = Request.PULL_MESSAGE, Request.UPDATE_CONSUMER_OFFSET, Request.CONSUMER_SEND_MSG_BACK


# --- what comes --------------------------------------------------------------------------------------------


def test_messages_with_other_tags_are_passed_over_and_count_as_read() -> None:
    reader = Reader(tags="abcd||efgh")
    reader.connection.grant(10)
    reader.brings(reader.pulls(), 0, 1, 3, following=9, tags={0: b"abcd", 1: b"zzzz", 3: b"efgh"})
    assert [int(message.id, 16) // 4 for message in reader.receiver.taken] == [0, 3]
    assert list(reader.reading.unsettled) == [0, 3]
    assert reader.reading.next == 9
    for message in reader.receiver.taken:
        reader.connection.finish(message)
    assert reader.done() == [9]


def test_what_has_our_tag_and_came_beyond_the_grant_is_pulled_again() -> None:
    reader = Reader(tags="abcd")
    reader.connection.grant(10)
    pull = reader.pulls()
    reader.connection.grant(1)
    reader.brings(pull, 0, 1, 2, following=9, tags=dict.fromkeys(range(3), b"abcd"))
    assert (len(reader.receiver.taken), reader.reading.next) == (1, 1)
    reader.connection.lost(None)


def test_of_what_came_the_first_and_the_last_one_are_remembered(reader: Reader) -> None:
    reader.taken(5)
    assert reader.reading.trail.points == [0, 4]


def test_what_comes_again_has_any_tag() -> None:
    """It was asked for by its tag when it came first."""
    reader = Reader(tags="abcd")
    reader.connection.readings.clear()
    again = reader.adds(0, topic=f"%RETRY%{GROUP}")
    reader.connection.grant(10)
    reader.brings(reader.pulls(), 0, tags={0: b"zzzz"})
    assert (len(reader.receiver.taken), again.next) == (1, 1)


def test_what_an_answer_leaves_out_is_looked_for(reader: Reader) -> None:
    """Without tags a broker leaves out only what it cannot read."""
    reader.connection.grant(10)
    reader.brings(reader.pulls(), 0, 1, 5, 6)
    assert (len(reader.receiver.taken), reader.reading.hole, reader.member.looks) == (2, 5, 1)
    assert reader.turn(PULL) == []


def test_a_body_that_cannot_be_unpacked_here_is_sent_back_for_another_worker(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = reader.connection._opener.opened
    hide = iter([True, False])
    monkeypatch.setattr(
        reader.connection._opener, "opened",
        lambda data: [(record, None if next(hide) else message, about) for record, message, about in opened(data)],
    )  # fmt: skip
    reader.connection.grant(2)
    reader.brings(reader.pulls(), 0, 1)
    assert (len(reader.receiver.taken), reader.receiver.tally.received) == (1, 1)
    asked = reader.paper.turn()
    (back,) = [one for one in asked if one.code == BACK]
    assert back.fields["delayLevel"] == "5"
    assert [one.fields["maxMsgNums"] for one in asked if one.code == PULL] == ["1"], "it takes no room"
    reader.paper.flush()
    assert reader.receiver.tally.requeued == 0
    back.then(Frame(Answer.SUCCESS), 0.0)
    assert reader.reading.mark == 1
    assert reader.connection.unsent() == 0


def test_a_body_that_was_sent_back_for_another_worker_is_in_nobodys_books(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = reader.connection._opener.opened
    monkeypatch.setattr(
        reader.connection._opener, "opened", lambda data: [(record, None, about) for record, _, about in opened(data)]
    )
    reader.connection.grant(2)
    reader.brings(reader.pulls(), 0)
    reader.connection.lost(BrokerUnreachable("gone"))
    assert reader.receiver.tally.lease_lost == 0


@pytest.mark.parametrize("before", ["drain", "close", "lost"])
def test_what_comes_after_the_end_is_passed_over(before: str, reader: Reader) -> None:
    reader.taken(1)
    pull = reader.pulls()
    reader.answers(pull, 1, 2)
    {"drain": reader.connection.drain, "close": reader.connection.close, "lost": lambda: reader.connection.lost(None)}[before]()
    reader.connection.arrive()
    assert len(reader.receiver.taken) == 1
    assert (reader.reading.next, reader.reading.ends) == (1, False) or before == "lost"


@pytest.mark.parametrize("before", ["drain", "close", "leaving", "moved"])
def test_an_answer_that_is_late_is_not_opened(before: str, reader: Reader) -> None:
    reader.taken(1)
    pull = reader.pulls()
    if before == "leaving":
        reader.reading.leaving = True
    elif before == "moved":
        reader.reading.goes_on_at(5)
    else:
        getattr(reader.connection, before)()
    reader.answers(pull, 1, 2)
    assert reader.paper.brought == 1
    assert not reader.reading.asking


def test_an_answer_after_the_end_is_nothing(reader: Reader) -> None:
    reader.connection.grant(5)
    pull = reader.pulls()
    reader.connection.lost(None)
    reader.answers(pull, 0)
    pull.then(refused(Answer.NO_PERMISSION), 0.0)
    assert (reader.paper.brought, reader.receiver.closings) == (0, 1)


@pytest.mark.parametrize("code", [Answer.TOPIC_NOT_EXIST, Answer.NO_PERMISSION, Answer.GO_AWAY])
def test_a_refusal_that_lasts_ends_the_connection(code: int, reader: Reader) -> None:
    reader.connection.grant(5)
    reader.pulls().then(refused(code), 0.0)
    assert (reader.receiver.closings, reader.member.broke) == (1, True)


def test_a_queue_that_is_refused_for_now_is_asked_again_later_and_the_others_are_read_on(reader: Reader) -> None:
    second = reader.adds(1)
    reader.connection.grant(5)
    first, other = reader.turn(PULL)
    first.then(refused(Answer.SYSTEM_BUSY), monotonic())
    reader.brings(other, 0)
    assert [one.fields["queueId"] for one in reader.turn(PULL)] == ["1"]
    assert (reader.reading.refused, second.refused) == (True, False)
    assert reader.connection._timer.active
    reader.connection._look()
    assert (reader.reading.refused, reader.connection._timer.active) == (True, True), "not over yet"
    reader.connection._refusals.until = monotonic() - 0.01
    reader.connection._look()
    assert [one.fields["queueId"] for one in reader.turn(PULL)] == ["0"]
    assert not reader.connection._timer.active


def test_a_broker_that_has_nothing_and_does_not_wait_is_asked_later(reader: Reader) -> None:
    reader.connection.grant(5)
    pull = reader.pulls()
    pull.then(Frame(Answer.PULL_NOT_FOUND), reader.reading.asked_at + requests.EARLY - 0.01)
    assert (reader.reading.refused, reader.turn(PULL)) == (True, [])


def test_a_broker_that_has_nothing_and_waited_is_asked_at_once(reader: Reader) -> None:
    reader.connection.grant(5)
    pull = reader.pulls()
    pull.then(Frame(Answer.PULL_NOT_FOUND), reader.reading.asked_at + requests.EARLY)
    assert (reader.reading.refused, len(reader.turn(PULL))) == (False, 1)


def moved(following: int) -> Frame:
    return Frame(Answer.PULL_OFFSET_MOVED, fields={"nextBeginOffset": str(following), "minOffset": "2", "maxOffset": "99"})


def test_a_broker_that_names_where_a_queue_goes_on_is_asked_there(reader: Reader) -> None:
    reader.connection.grant(5)
    reader.pulls().then(moved(7), 0.0)
    pull = reader.pulls()
    assert (pull.fields["queueOffset"], reader.reading.refused) == ("7", False)
    pull.then(moved(7), monotonic())
    assert (reader.reading.refused, reader.turn(PULL)) == (True, []), "the same place again and again"


def test_a_queue_that_goes_back_behind_what_is_in_flight_ends_the_connection(reader: Reader) -> None:
    reader.taken(5, granted=10)
    reader.pulls().then(moved(3), 0.0)
    assert reader.receiver.closings == 1


def test_a_queue_that_goes_back_behind_what_was_read_is_looked_at(reader: Reader) -> None:
    for message in reader.taken(5, granted=10):
        reader.connection.finish(message)
    looks = reader.member.looks
    reader.pulls().then(moved(3), 0.0)
    assert (reader.reading.astray, reader.member.looks) == (True, looks + 1)
    assert reader.turn(PULL) == []


def test_a_place_that_points_nowhere_is_looked_at_while_others_are_in_flight(reader: Reader) -> None:
    """``moved`` is not asked: the place that is named is no news of the queue."""
    reader.taken(2, granted=10)
    looks = reader.member.looks
    fields = {"nextBeginOffset": "90", "minOffset": "0", "maxOffset": "99"}
    reader.pulls().then(Frame(Answer.PULL_RETRY_IMMEDIATELY, fields=fields, remark="MESSAGE_WAS_REMOVING"), 0.0)
    assert (reader.reading.hole, reader.reading.next, reader.member.looks) == (90, 2, looks + 1)


def test_an_answer_that_begins_behind_what_was_asked_for_is_no_progress(reader: Reader) -> None:
    reader.taken(3, granted=10)
    reader.brings(reader.pulls(), 1, 2, following=3)
    assert reader.reading.refused
    assert len({message.id for message in reader.receiver.taken}) == len(reader.receiver.taken)


def test_of_an_answer_that_begins_before_what_was_asked_for_only_what_is_new_is_taken(reader: Reader) -> None:
    reader.taken(2, granted=10)
    reader.brings(reader.pulls(), 1, 2, following=2)
    assert (len(reader.receiver.taken), reader.reading.next, reader.reading.refused) == (3, 3, False)


def test_one_that_looks_already_is_not_put_off(reader: Reader) -> None:
    started: list[Any] = []
    reader.connection._timer.close()
    reader.connection._timer = SimpleNamespace(active=True, start=started.append, close=lambda: None)
    reader.connection.grant(5)
    reader.pulls().then(refused(Answer.SYSTEM_BUSY), monotonic())
    assert started == []
