"""A connection by POP, on paper: what it asks for, says, counts and gives back, one answer at a time."""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest

from framework.errors import BrokerUnreachable
from framework.transports.rocketmq import connection as popping
from framework.transports.rocketmq.delivery import APART
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.paper import GROUP, TOPIC, Popper, refused, stored

POP, ACK, CHANGE = Request.POP_MESSAGE, Request.ACK_MESSAGE, Request.CHANGE_MESSAGE_INVISIBLETIME


def changes(popper: Popper) -> list[str]:
    """The leases that are asked for in this turn, in milliseconds."""
    return [one.fields["invisibleTime"] for one in popper.turn(CHANGE)]


# --- what is asked for -------------------------------------------------------------------------------------


def test_a_pop_asks_for_what_is_granted(popper: Popper) -> None:
    popper.connection.grant(7)
    pop = popper.pops()
    names = ("maxMsgNums", "consumerGroup", "topic", "invisibleTime", "pollTime", "exp")
    assert [pop.fields[name] for name in names] == ["7", GROUP, TOPIC, "60000", "2000", "*"]
    assert pop.wait == 2.0
    popper.connection.grant(7)
    assert popper.turn(POP) == []


def test_what_may_come_is_not_asked_for_again(popper: Popper) -> None:
    popper.connection.grant(7)
    first = popper.pops()
    popper.answers(first, 0, 1, rest=100)
    assert popper.connection.exposed == 7
    assert popper.turn(POP) == [], "seven may be in it"
    popper.connection.arrive()
    assert len(popper.receiver.taken) == 2
    second = popper.pops()
    assert second.fields["maxMsgNums"] == "5"
    popper.connection.grant(1)
    assert popper.connection.exposed == 7, "it cannot be taken back"


def test_it_begins_with_nothing(popper: Popper) -> None:
    assert (popper.connection.granted, popper.connection.exposed, popper.connection.unsent()) == (0, 0, 0)
    assert popper.paper.turn() == []


def test_no_more_is_granted_than_the_limit() -> None:
    popper = Popper(max_grant=5)
    popper.connection.grant(9)
    assert (popper.connection.granted, popper.pops().fields["maxMsgNums"]) == (5, "5")
    popper.connection.lost(BrokerUnreachable("the end"))


def test_a_lone_message_is_handled_before_more_is_asked_for(popper: Popper) -> None:
    popper.connection.grant(7)
    pop = popper.pops()
    popper.answers(pop, 0)
    assert (popper.paper.wanted, popper.paper.brought) == (0, 1)
    popper.connection.arrive()
    assert popper.paper.wanted == 1


def test_where_there_is_more_it_is_asked_for_before_what_came_is_opened(popper: Popper) -> None:
    popper.connection.grant(40)
    popper.answers(popper.pops(), *range(32), rest=50)
    assert popper.pops().fields["maxMsgNums"] == "8"


def test_a_session_that_leaves_is_asked_for_nothing_and_is_told_what_was_settled(popper: Popper) -> None:
    message = popper.taken(1)[0]
    popper.paper.leaving = True
    popper.connection.finish(message)
    assert [one.code for one in popper.paper.turn()] == [ACK]


@pytest.mark.parametrize(("code", "waits"), [(Answer.SYSTEM_BUSY, True), (Answer.POLLING_FULL, True), (Answer.SUCCESS, False)])
def test_a_broker_that_refuses_is_asked_again_a_second_later(code: int, waits: bool, popper: Popper) -> None:
    popper.connection.grant(7)
    pop = popper.pops()
    if waits:
        pop.then(refused(code), monotonic())
        assert (popper.turn(POP), popper.connection.exposed) == ([], 7)
        popper.connection._look()
        assert popper.turn(POP) == [], "the second is not over"
        popper.connection._refusals.until = monotonic() - 0.01
        popper.connection._look()
    else:
        popper.brings(pop, 0)
    assert len(popper.turn(POP)) == 1


@pytest.mark.parametrize(("late", "waits"), [(-0.001, True), (0.0, False)])
def test_a_broker_that_has_nothing_is_asked_at_once_where_it_waited_for_something(
    late: float, waits: bool, popper: Popper
) -> None:
    popper.connection.grant(7)
    pop: Any = popper.pops()
    _, asked, early = pop.then.args
    assert early - asked == popping.EARLY * 2.0
    pop.then(Frame(Answer.POLLING_TIMEOUT), early + late)
    assert (popper.connection._refusals.until > 0) is waits
    assert (popper.turn(POP) == []) is waits


@pytest.mark.parametrize("code", [Answer.TOPIC_NOT_EXIST, Answer.NO_PERMISSION, Answer.REQUEST_CODE_NOT_SUPPORTED])
def test_a_refusal_that_lasts_ends_the_connection(code: int, popper: Popper) -> None:
    popper.connection.grant(7)
    popper.pops().then(refused(code), 0.0)
    assert (popper.receiver.closings, popper.paper.has_left, popper.left) == (1, True, [popper.paper])


def test_an_answer_without_messages_is_nothing_and_asked_for_later(popper: Popper) -> None:
    popper.connection.grant(7)
    pop = popper.pops()
    pop.then(Frame(Answer.SUCCESS, fields={"popTime": "1", "invisibleTime": "60000", "reviveQid": "0"}), monotonic())
    popper.connection.arrive()
    assert popper.connection._refusals.until > 0
    assert popper.turn(POP) == []


# --- what comes --------------------------------------------------------------------------------------------


def test_what_came_is_in_flight_from_when_it_was_read(popper: Popper) -> None:
    popper.connection.grant(3)
    at = monotonic() - 1
    popper.brings(popper.pops(), 0, 1, at=at)
    assert list(popper.connection.in_flight.values()) == [at, at]
    assert (popper.receiver.tally.received, [message.attempts for message in popper.receiver.taken]) == (2, [1, 1])


def test_messages_with_other_tags_are_acknowledged_and_not_delivered() -> None:
    popper = Popper(tags="abcd")
    popper.connection.grant(10)
    popper.brings(popper.pops(), 0, 1, 2, tags={0: b"zzzz", 1: b"abcd", 2: b"yyyy"})
    assert len(popper.receiver.taken) == 1
    assert [(code, fields["offset"]) for code, fields in popper.paper.told] == [(ACK, "0"), (ACK, "2")]
    popper.connection.finish(popper.receiver.taken[0])
    (ack,) = popper.turn(ACK)
    assert ack.fields["offset"] == "1"
    popper.connection.lost(BrokerUnreachable("the end"))


def test_messages_of_two_queues_have_handles_of_their_own(popper: Popper) -> None:
    popper.connection.grant(10)
    fields = {
        "popTime": str(round((monotonic() - 1) * 1000)), "invisibleTime": "60000", "reviveQid": "0", "restNum": "0",
        "startOffsetInfo": "0 0 5;0 1 8", "msgOffsetInfo": "0 0 5;0 1 8",
    }  # fmt: skip
    two = stored(5) + stored(8)[:12] + b"\0\0\0\x01" + stored(8)[16:]
    popper.pops().then(Frame(Answer.SUCCESS, fields=fields, body=two), monotonic())
    popper.connection.arrive()
    first, second = popper.receiver.taken
    for message, (queue, offset) in ((second, ("1", "8")), (first, ("0", "5"))):
        popper.connection.finish(message)
        (ack,) = popper.turn(ACK)
        assert (ack.fields["queueId"], ack.fields["offset"]) == (queue, offset)
        assert ack.fields["extraInfo"].split()[0] == offset


def test_what_cannot_be_unpacked_here_is_left_to_its_lease(popper: Popper, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = popper.connection._opener.opened
    hide = iter([True, False])
    monkeypatch.setattr(
        popper.connection._opener, "opened",
        lambda data: [(record, None if next(hide) else message, about) for record, message, about in opened(data)],
    )  # fmt: skip
    popper.connection.grant(7)
    popper.brings(popper.pops(), 0, 1)
    assert (len(popper.receiver.taken), popper.receiver.tally.received, popper.paper.told) == (1, 1, [])


def test_what_is_too_late_is_not_delivered() -> None:
    popper = Popper(lease=1.0)
    popper.connection.grant(7)
    popper.brings(popper.pops(), 0, at=monotonic() - 1.01)
    assert (popper.receiver.taken, popper.receiver.tally.received) == ([], 0)
    popper.connection.lost(BrokerUnreachable("the end"))


def test_what_was_read_of_a_queue_is_remembered(popper: Popper) -> None:
    popper.taken(3)
    (trail,) = popper.past.trails.values()
    assert trail.points == [0, 2]


def test_what_comes_after_the_end_is_given_back_at_once(popper: Popper) -> None:
    """Others use the session."""
    popper.connection.grant(7)
    popper.answers(popper.pops(), 0, 1)
    popper.connection.lost(BrokerUnreachable("gone"))
    popper.connection.arrive()
    assert [(code, fields["offset"], fields["invisibleTime"]) for code, fields in popper.paper.told] == [
        (CHANGE, "0", "0"), (CHANGE, "1", "0"),
    ]  # fmt: skip
    assert (popper.receiver.taken, popper.receiver.tally.received) == ([], 0)


def test_what_comes_while_it_closes_is_requeued(popper: Popper) -> None:
    popper.connection.grant(7)
    pop = popper.pops()
    popper.connection.close()
    popper.brings(pop, 0, 1, at=monotonic() - 5 * APART)
    assert (popper.receiver.taken, popper.receiver.tally.received) == ([], 2)
    assert changes(popper) == ["0", "0"]


def test_what_comes_while_it_drains_is_delivered_and_then_it_is_drained(popper: Popper) -> None:
    popper.connection.grant(7)
    pop = popper.pops()
    popper.connection.drain()
    popper.paper.turn()
    assert popper.receiver.drains == 0, "that POP may bring something"
    popper.answers(pop, 0, 1, rest=5)
    assert popper.receiver.drains == 0, "it brought something"
    popper.connection.arrive()
    assert (len(popper.receiver.taken), popper.receiver.drains) == (2, 1)
    popper.connection.drain()
    assert (popper.turn(POP), popper.receiver.drains) == ([], 1)


def test_a_pop_that_brings_nothing_while_it_drains_was_the_last(popper: Popper) -> None:
    popper.connection.grant(7)
    pop = popper.pops()
    popper.connection.drain()
    pop.then(Frame(Answer.POLLING_TIMEOUT), monotonic() + 5.0)
    assert popper.receiver.drains == 1


def test_a_drain_with_nothing_under_way_is_over_at_once(popper: Popper) -> None:
    popper.connection.drain()
    popper.paper.turn()
    assert (popper.receiver.drains, popper.connection.granted) == (1, 0)


@pytest.mark.parametrize("end", ["drain", "close"])
def test_one_that_ends_takes_no_grant(end: str, popper: Popper) -> None:
    getattr(popper.connection, end)()
    popper.connection.grant(5)
    assert (popper.connection.granted, popper.turn(POP)) == (0, [])


def test_an_answer_that_is_an_error_ends_the_connection(popper: Popper) -> None:
    popper.connection.grant(5)
    popper.pops().then(BrokerUnreachable("gone"), 0.0)
    assert popper.receiver.closings == 1


def test_a_refusal_after_the_end_is_nothing(popper: Popper) -> None:
    popper.connection.grant(5)
    pop = popper.pops()
    popper.connection.lost(BrokerUnreachable("gone"))
    pop.then(refused(Answer.SYSTEM_BUSY), monotonic())
    assert (popper.receiver.closings, popper.connection._refusals._said) == (1, set())
