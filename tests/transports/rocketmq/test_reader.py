"""A connection by PULL, on paper: what it asks for, commits, counts and says of what is settled."""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest

from framework.errors import AlreadySettled, BrokerUnreachable
from framework.transports.rocketmq import requests
from framework.transports.rocketmq.pulled import SIZE
from framework.transports.rocketmq.queues import SPAN
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.paper import GROUP, TOPIC, Reader, refused

PULL, COMMIT, BACK = Request.PULL_MESSAGE, Request.UPDATE_CONSUMER_OFFSET, Request.CONSUMER_SEND_MSG_BACK


# --- what is asked for -------------------------------------------------------------------------------------


def test_a_pull_asks_for_what_is_granted_where_the_queue_goes_on(reader: Reader) -> None:
    reader.connection.grant(7)
    pull = reader.pulls()
    assert (pull.code, pull.wait) == (PULL, requests.PARKED + requests.CHECKED)
    assert [pull.fields[name] for name in ("queueOffset", "maxMsgNums", "sysFlag", "topic")] == ["0", "7", "6", TOPIC]
    reader.connection.grant(8)
    assert reader.turn(PULL) == [], "it is asked already"


@pytest.mark.parametrize(("granted", "asks"), [(1, ["1"]), (requests.MOST, ["32"]), (requests.MOST + 1, ["32"])])
def test_a_pull_asks_for_no_more_than_a_broker_gives(granted: int, asks: list[str], reader: Reader) -> None:
    reader.connection.grant(granted)
    assert [one.fields["maxMsgNums"] for one in reader.turn(PULL)] == asks


def test_what_is_in_flight_and_what_came_and_is_not_opened_is_not_asked_for_again(reader: Reader) -> None:
    reader.taken(3, granted=10)
    pull = reader.pulls()
    assert pull.fields["maxMsgNums"] == "7"
    reader.answers(pull, 3, 4)
    assert reader.turn(PULL) == [], "all seven may be in it"
    assert reader.paper.brought == 2
    reader.connection.arrive()
    assert len(reader.receiver.taken) == 5
    assert reader.pulls().fields["maxMsgNums"] == "5"


def test_a_grant_of_one_more_is_asked_for_and_none_is_not(reader: Reader) -> None:
    messages = reader.taken(2, granted=2)
    assert reader.turn(PULL) == []
    reader.connection.finish(messages[0])
    assert reader.pulls().fields["maxMsgNums"] == "1"


def test_what_came_beyond_the_grant_is_passed_over_and_pulled_again(reader: Reader) -> None:
    reader.connection.grant(10)
    pull = reader.pulls()
    reader.connection.grant(2)
    reader.brings(pull, *range(10))
    assert len(reader.receiver.taken) == 2
    reader.connection.finish(reader.receiver.taken[0])
    assert reader.pulls().fields["queueOffset"] == "2"
    assert reader.connection.exposed == 2


def test_the_grant_is_for_all_queues_together(reader: Reader) -> None:
    second = reader.adds(1)
    reader.connection.grant(5)
    first, other = reader.turn(PULL)
    reader.brings(first, 0, 1, 2, 3)
    reader.brings(other, 0, 1, 2, 3)
    assert (len(reader.receiver.taken), reader.reading.next, second.next) == (5, 4, 1)


def test_a_worker_that_settles_nothing_reads_no_further_than_its_span(reader: Reader) -> None:
    reader.reading.next = reader.reading.ahead = SPAN - 3
    reader.reading.unsettled[0] = None
    reader.connection.grant(10)
    assert reader.pulls().fields["maxMsgNums"] == "3"


def test_no_more_is_granted_than_the_limit() -> None:
    reader = Reader(max_grant=5)
    reader.connection.grant(9)
    assert (reader.connection.granted, reader.connection.exposed) == (5, 5)
    reader.connection.lost(None)


def test_a_session_that_leaves_is_asked_for_nothing_and_is_told_what_was_settled(reader: Reader) -> None:
    message = reader.taken(1)[0]
    reader.paper.leaving = True
    reader.connection.finish(message)
    assert [one.code for one in reader.paper.turn()] == [COMMIT]


# --- settlements -------------------------------------------------------------------------------------------


def test_what_is_finished_is_committed_up_to_the_first_that_is_not_and_counted_when_it_is_sent(reader: Reader) -> None:
    first, second, third = reader.taken(3, granted=3)
    tally = reader.receiver.tally
    reader.paper.turn()
    reader.connection.finish(second)
    reader.connection.finish(first)
    assert reader.connection.unsent() == 2 * SIZE
    (commit,) = reader.turn(COMMIT)
    assert (commit.fields["commitOffset"], commit.fields["queueId"], commit.fields["consumerGroup"]) == ("2", "0", GROUP)
    assert (tally.finished, reader.connection.unsent()) == (0, 2 * SIZE)
    reader.paper.flush()
    assert (tally.finished, reader.connection.unsent()) == (2, 0)
    reader.connection.finish(third)
    assert reader.turn(COMMIT) == [], "its broker has not said yet that it has the last one"
    commit.then(Frame(Answer.SUCCESS), 0.0)
    assert [one.fields["commitOffset"] for one in reader.turn(COMMIT)] == ["3"]


def test_what_was_committed_is_not_committed_again(reader: Reader) -> None:
    first, second = reader.taken(2, granted=2)
    reader.connection.finish(first)
    (commit,) = reader.turn(COMMIT)
    commit.then(Frame(Answer.SUCCESS), 0.0)
    assert reader.turn(COMMIT) == []
    reader.connection.finish(second)
    assert len(reader.turn(COMMIT)) == 1


def test_a_pull_that_does_not_wait_commits_as_well(reader: Reader) -> None:
    first, *_ = reader.taken(3, more=True)
    assert reader.pulls().fields["sysFlag"] == "7"
    reader.connection.finish(first)
    assert reader.turn(COMMIT) == [], "that PULL tells it"


@pytest.mark.parametrize(
    ("code", "again"), [(Answer.PULL_NOT_FOUND, []), (Answer.PULL_RETRY_IMMEDIATELY, []), (Answer.SYSTEM_BUSY, [1])]
)
def test_a_pull_that_was_refused_has_committed_nothing(code: int, again: list[int], reader: Reader) -> None:
    first, second = reader.taken(2, granted=2, more=True)
    reader.connection.finish(first)
    pull = reader.pulls()
    assert (pull.fields["sysFlag"], pull.fields["commitOffset"]) == ("7", "1")
    pull.then(Frame(code, remark="busy"), monotonic() + 60)
    assert reader.done() == again
    reader.connection.finish(second)
    if not again:
        assert reader.done() == [2]


def test_a_pull_that_nobody_answers_has_committed_nothing_and_ends_the_connection(reader: Reader) -> None:
    first, _ = reader.taken(2, granted=2, more=True)
    reader.connection.finish(first)
    reader.pulls().then(BrokerUnreachable("gone"), 0.0)
    assert (reader.receiver.closings, reader.reading.told) == (1, 0)


@pytest.mark.parametrize(("delay", "level"), [(0.0, "1"), (1.0, "1"), (1.1, "2"), (5.0, "2"), (7200.0, "18"), (9999.0, "18")])
def test_what_is_requeued_is_sent_back_at_the_level_of_its_delay(delay: float, level: str, reader: Reader) -> None:
    first, second = reader.taken(2, granted=2)
    reader.paper.turn()
    reader.connection.finish(second)
    reader.connection.requeue(first, delay)
    assert reader.connection.unsent() == 2 * SIZE
    (back,) = reader.turn(BACK)
    assert (back.fields["delayLevel"], back.fields["group"], back.fields["originTopic"]) == (level, GROUP, TOPIC)
    reader.paper.flush()
    assert (reader.receiver.tally.finished, reader.receiver.tally.requeued) == (1, 1)
    assert reader.reading.mark == 0, "until its broker says so, it is where it was"
    back.then(Frame(Answer.SUCCESS), 0.0)
    assert reader.done() == [2]
    assert reader.reading.last_settled == 1


def test_what_was_taken_back_before_the_socket_said_that_it_left_is_requeued_for_good(reader: Reader) -> None:
    (first,) = reader.taken(1, granted=1)
    reader.connection.requeue(first, 0.0)
    (back,) = reader.turn(BACK)
    back.then(Frame(Answer.SUCCESS), 0.0)
    reader.paper.flush()
    reader.connection.lost(BrokerUnreachable("gone"))
    tally = reader.receiver.tally
    assert (tally.requeued, tally.lease_lost) == (1, 0)


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("answer", [Frame(Answer.SYSTEM_ERROR, remark="full"), BrokerUnreachable("gone")])
def test_what_is_not_taken_back_ends_the_connection_and_is_lost(answer: Any, sent: bool, reader: Reader) -> None:
    first, second, third = reader.taken(3, granted=3)
    reader.paper.turn()
    reader.connection.requeue(first, 0.0)
    reader.connection.finish(second)
    (back,) = reader.turn(BACK)
    if sent:
        reader.paper.flush()
    back.then(answer, 0.0)
    tally = reader.receiver.tally
    assert (tally.finished, tally.requeued, tally.lease_lost) == ((1, 0, 2) if sent else (0, 0, 3))
    assert (reader.receiver.closings, reader.paper.has_left, reader.member.broke) == (1, True, True)
    with pytest.raises(AlreadySettled):
        reader.connection.finish(third)


def test_a_commit_that_is_refused_ends_the_connection(reader: Reader) -> None:
    (first,) = reader.taken(1, granted=1)
    reader.connection.finish(first)
    (commit,) = reader.turn(COMMIT)
    commit.then(refused(), 0.0)
    assert reader.receiver.closings == 1
    assert reader.reading.told == 0


def test_what_is_given_up_is_finished_where_there_is_no_dlq(reader: Reader) -> None:
    (first,) = reader.taken(1, granted=1)
    reader.paper.turn()
    reader.connection.terminate(first)
    assert [one.code for one in reader.paper.turn()] == [PULL, COMMIT]
    reader.paper.flush()
    assert reader.receiver.tally.finished == 1


@pytest.mark.parametrize("answer", [Frame(Answer.SUCCESS), Frame(Answer.SYSTEM_ERROR, remark="no such topic")])
def test_what_is_given_up_is_sent_to_the_dlq_and_counts_as_finished_whatever_comes_of_it(answer: Frame) -> None:
    """It is stored as ours already."""
    reader = Reader(dlq=True)
    (first,) = reader.taken(1, granted=1)
    reader.connection.terminate(first)
    (back,) = reader.turn(BACK)
    assert back.fields["delayLevel"] == str(requests.DEAD)
    reader.paper.flush()
    assert (reader.receiver.tally.finished, reader.receiver.tally.requeued) == (1, 0)
    back.then(answer, 0.0)
    assert (reader.reading.mark, reader.reading.sent_back, reader.receiver.closings) == (1, 0, 0)
    reader.connection.lost(None)
    assert reader.receiver.tally.finished == 1


def test_what_is_given_up_and_never_answered_for_is_lost() -> None:
    reader = Reader(dlq=True)
    first, second = reader.taken(2, granted=2)
    reader.connection.terminate(first)
    reader.connection.requeue(second, 0.0)
    reader.paper.turn()
    reader.paper.flush()
    reader.connection.lost(BrokerUnreachable("gone"))
    tally = reader.receiver.tally
    assert (tally.finished, tally.requeued, tally.lease_lost) == (0, 0, 2)
    assert reader.receiver.wrongs == []


def test_nothing_is_settled_twice(reader: Reader) -> None:
    first, second, third = reader.taken(3)
    reader.connection.finish(first)
    reader.connection.requeue(second, 0.0)
    reader.connection.terminate(third)
    for message in (first, second, third):
        for settle in (reader.connection.finish, reader.connection.terminate, lambda one: reader.connection.requeue(one, 0.0)):
            with pytest.raises(AlreadySettled):
                settle(message)


def test_what_is_over_before_it_is_said_is_lost(reader: Reader) -> None:
    first, second, *_ = reader.taken(4)
    reader.connection.finish(first)
    reader.connection.requeue(second, 0.0)
    reader.connection.lost(BrokerUnreachable("gone"))
    tally = reader.receiver.tally
    assert (tally.received, tally.finished, tally.requeued, tally.lease_lost) == (4, 0, 0, 4)
    assert (reader.connection.unsent(), reader.connection.granted, reader.connection.readings) == (0, 0, {})


def test_a_handler_that_waits_to_hear_of_its_settlements_hears_of_each(reader: Reader) -> None:
    heard: list[Any] = []
    reader.receiver.settled = heard.append  # type: ignore[method-assign]
    first, second, _ = reader.taken(3)
    reader.paper.turn()
    assert heard == []
    reader.connection.finish(first)
    reader.paper.turn()
    reader.connection.requeue(second, 0.0)
    reader.paper.turn()
    assert heard == [reader.connection] * 2
