"""A membership on paper: what each look asks of the broker, which queues it takes and lets go, and when it looks again."""

from __future__ import annotations

import pytest

from framework.errors import BrokerUnreachable
from framework.transports.rocketmq.membership import AGAIN, BALANCE, HELD, RECENT, ROUTED
from framework.transports.rocketmq.queues import Place, Reading
from framework.transports.rocketmq.trail import Trail
from framework.transports.rocketmq.wire.codes import Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.group import ME, WHAT, Group
from tests.transports.rocketmq.paper import GROUP, NODE, TOPIC

# --- who reads what ----------------------------------------------------------------------------------------


def test_the_first_look_joins_locks_and_goes_on_where_the_group_is(group: Group) -> None:
    group.broker.offsets = {0: "7", 1: "0"}
    assert group.look() == BALANCE
    assert group.broker.said(Request.HEART_BEAT) == [({}, {"group": GROUP})]
    assert group.numbers == [0, 1, 2, 3]
    assert [reading.next for place, reading in group.shelf.readings.items() if place.topic == TOPIC] == [7, 0, 0, 0]
    ((_, body),) = group.broker.said(Request.LOCK_BATCH_MQ)
    assert (body["consumerGroup"], body["clientId"], len(body["mqSet"])) == (GROUP, ME, 5)
    asked = group.broker.said(Request.QUERY_CONSUMER_OFFSET)
    assert {fields["setZeroIfNotFound"] for fields, _ in asked} == {"false"}
    assert group.member.has_queues
    assert group.shelf.balances == 1


def test_a_second_look_asks_only_who_there_is(group: Group) -> None:
    group.look()
    group.broker.asked.clear()
    group.routes.clear()
    assert group.look() == BALANCE
    assert [code for code, _, _ in group.broker.asked] == [Request.GET_CONSUMER_LIST_BY_GROUP]
    assert group.routes == []


def test_the_route_is_asked_for_again_when_it_is_old(group: Group) -> None:
    group.look()
    group.routes.clear()
    group.clock[0] += RECENT - 0.25
    group.look()
    assert group.routes == []
    group.clock[0] += 0.25
    group.places[TOPIC].append(Place(TOPIC, NODE, 4))
    group.look()
    assert group.routes == [TOPIC, WHAT.retry_topic]
    assert group.numbers == [0, 1, 2, 3, 4]


def test_a_route_that_cannot_be_had_now_is_the_one_it_was(group: Group) -> None:
    group.look()
    group.clock[0] += RECENT
    group.unknown = {TOPIC}
    group.look()
    assert group.numbers == [0, 1, 2, 3]


def test_a_route_that_was_never_had_is_an_error(group: Group) -> None:
    group.unknown = {TOPIC}
    with pytest.raises(BrokerUnreachable, match="no route"):
        group.look()


def test_a_retry_topic_that_is_not_there_yet_is_looked_for_again(clock: list[float]) -> None:
    group = Group(clock, retry=0)
    assert group.look() == ROUTED
    group.routes.clear()
    group.look()
    assert group.routes == [WHAT.retry_topic], "an empty one is not kept"


def test_only_the_queues_of_its_own_broker_are_read(group: Group) -> None:
    group.places[TOPIC] += [Place(TOPIC, "another", 0)]
    group.look()
    assert group.numbers == [0, 1, 2, 3]


def test_a_broker_that_does_not_know_it_yet_is_told_again(group: Group) -> None:
    group.broker.members = []
    assert group.look() == AGAIN
    assert (group.numbers, len(group.broker.said(Request.HEART_BEAT))) == ([], 1)
    group.broker.members = [ME]
    assert group.look() == BALANCE
    assert (group.numbers, len(group.broker.said(Request.HEART_BEAT))) == ([0, 1, 2, 3], 1)


def test_one_that_is_forgotten_keeps_what_it_has_and_says_so_again(group: Group) -> None:
    group.look()
    group.broker.members = ["other"]
    assert group.look() == AGAIN
    assert group.numbers == [0, 1, 2, 3]
    group.broker.said(Request.HEART_BEAT)
    group.broker.members = [ME]
    group.look()
    assert len(group.broker.said(Request.HEART_BEAT)) == 1


def test_queues_are_shared_with_others_and_let_go_with_what_was_read_of_them(group: Group) -> None:
    group.look()
    for reading in group.shelf.readings.values():
        reading.goes_on_at(9)
    group.broker.asked.clear()
    group.broker.members = [ME, "n"]
    group.look()
    assert group.numbers == [0, 1]
    told = {(fields["queueId"], fields["commitOffset"]) for fields, _ in group.broker.said(Request.UPDATE_CONSUMER_OFFSET)}
    assert told == {("2", "9"), ("3", "9")}
    ((_, body),) = group.broker.said(Request.UNLOCK_BATCH_MQ)
    assert (body["clientId"], [one["queueId"] for one in body["mqSet"]]) == (ME, [2, 3])
    assert group.pasts[GROUP].trails[Place(TOPIC, NODE, 3)].most == 9


def test_what_its_broker_knows_is_not_committed_again_but_a_beginning_is(group: Group) -> None:
    """Where a group has never committed, another member would begin elsewhere."""
    group.broker.offsets = {2: "9", 3: "9"}
    group.look()
    group.broker.members = [ME, "n"]
    group.look()
    assert group.broker.said(Request.UPDATE_CONSUMER_OFFSET) == []
    group.broker.members = ["a", ME]
    group.look()
    group.look()
    told = [fields for fields, _ in group.broker.said(Request.UPDATE_CONSUMER_OFFSET) if fields["topic"] == TOPIC]
    assert [(fields["queueId"], fields["commitOffset"]) for fields in told] == [("0", "0"), ("1", "0")]


def test_a_queue_that_is_not_drained_is_kept_and_leaves(group: Group) -> None:
    group.look()
    group.shelf.lets_go = False
    group.broker.members = [ME, "n"]
    group.look()
    assert group.numbers == [0, 1, 2, 3]
    assert [group.shelf.readings[place].leaving for place in group.places[TOPIC]] == [False, False, True, True]
    assert group.broker.said(Request.UNLOCK_BATCH_MQ) == []
    group.broker.members = [ME]
    group.look()
    assert not any(reading.leaving for reading in group.shelf.readings.values())


def test_a_commit_that_fails_keeps_the_queue_and_leaves_others_free_to_tell(group: Group) -> None:
    group.look()
    group.broker.fails = {Request.UPDATE_CONSUMER_OFFSET}
    for reading in group.shelf.readings.values():
        reading.goes_on_at(9)
    group.broker.members = [ME, "n"]
    with pytest.raises(BrokerUnreachable):
        group.look()
    assert group.numbers == [0, 1, 2, 3]
    assert not any(reading.telling for reading in group.shelf.readings.values())
    assert group.broker.said(Request.UNLOCK_BATCH_MQ) == []


def test_one_that_wants_no_queues_leaves_and_is_no_holder_any_more(group: Group) -> None:
    group.look()
    group.broker.asked.clear()
    group.shelf.wants_queues, group.shelf.lets_go = False, False
    assert group.look() == BALANCE
    assert group.broker.said(Request.UNREGISTER_CLIENT) == [({"clientID": ME, "consumerGroup": GROUP}, None)]
    assert (group.numbers, group.member.has_queues) == ([0, 1, 2, 3], True)
    group.shelf.lets_go = True
    group.look()
    assert group.numbers == []
    assert group.broker.said(Request.UNREGISTER_CLIENT) == [({"clientID": ME, "producerGroup": GROUP}, None)]
    assert not group.member.has_queues
    group.look()
    assert group.broker.said(Request.UNREGISTER_CLIENT) == [], "said once"
    group.shelf.wants_queues = True
    group.look()
    assert (group.numbers, len(group.broker.said(Request.HEART_BEAT))) == ([0, 1, 2, 3], 1)


def test_one_that_has_no_queue_and_may_have_one_says_so(group: Group) -> None:
    group.broker.members = ["a", "b", "c", "d", ME]
    group.look()
    assert (group.numbers, group.member.has_queues) == ([], True)
    assert group.broker.said(Request.UNREGISTER_CLIENT) == []


def test_what_is_let_go_is_told_by_nobody_else_meanwhile(group: Group) -> None:
    group.look()
    reading = group.shelf.readings[Place(TOPIC, NODE, 3)]
    reading.goes_on_at(9)
    telling: list[bool] = []
    said = group.broker._said

    def answered(code: int, fields: dict[str, str], body: bytes) -> Frame:
        if code in (Request.UPDATE_CONSUMER_OFFSET, Request.UNLOCK_BATCH_MQ):
            telling.append(reading.telling)
        return said(code, fields, body)

    group.broker._said = answered  # type: ignore[method-assign]
    group.broker.members = [ME, "n"]
    group.look()
    assert telling
    assert all(telling)


@pytest.mark.parametrize("read_before", [True, False])
def test_of_a_queue_that_was_not_read_before_it_is_noted_where_it_begins(
    read_before: bool, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Reading] = []
    monkeypatch.setattr(group.member._sameness, "begin", begun.append)
    monkeypatch.setattr(group.member._sameness, "find", lambda reading: None)
    if read_before:
        group.pasts[GROUP].trails[Place(TOPIC, NODE, 0)] = (trail := Trail())
        trail.most = 5
    group.look()
    assert sorted(one.place.number for one in begun if one.place.topic == TOPIC) == ([1, 2, 3] if read_before else [0, 1, 2, 3])
    assert len(group.shelf.readings) == 5


# --- whose turn it is --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("holders", "taken"), [
    ([ME, "n"], [0, 1, 3]), (None, [0, 1, 3]), ([ME], [0, 1, 2, 3]), ([], [0, 1, 2, 3]),
])  # fmt: skip
def test_a_lock_counts_where_it_can_be_that_of_a_living_member(holders: list[str] | None, taken: list[int], group: Group) -> None:
    group.broker.locked, group.broker.holders = {2}, holders
    assert group.look() == (AGAIN if len(taken) < 4 else BALANCE)
    assert group.numbers == taken
    group.broker.locked = set()
    group.look()
    assert group.numbers == [0, 1, 2, 3]


def test_a_lock_counts_for_nothing_where_nobody_is_connected(group: Group) -> None:
    group.broker.locked, group.broker.nobody = {2}, True
    group.look()
    assert group.numbers == [0, 1, 2, 3]


def test_who_holds_locks_is_asked_only_where_one_was_refused(group: Group) -> None:
    group.look()
    assert group.broker.said(Request.GET_PRODUCER_CONNECTION_LIST) == []


def test_locks_are_renewed(group: Group) -> None:
    group.look()
    group.broker.said(Request.LOCK_BATCH_MQ)
    group.clock[0] += BALANCE - 0.25
    group.look()
    assert group.broker.said(Request.LOCK_BATCH_MQ) == []
    group.clock[0] += 0.25
    group.look()
    ((_, body),) = group.broker.said(Request.LOCK_BATCH_MQ)
    assert (len(body["mqSet"]), body["clientId"]) == (5, ME)
    group.look()
    assert group.broker.said(Request.LOCK_BATCH_MQ) == []


@pytest.mark.parametrize("holders", [[ME], [ME, "n"], None])
def test_one_that_was_killed_is_unlocked_when_it_is_not_back_in_time(holders: list[str] | None, group: Group) -> None:
    group.broker.members = [ME, "n"]
    group.look()
    group.broker.members, group.broker.holders = [ME], holders
    assert group.look() == pytest.approx(min(BALANCE, HELD))
    group.clock[0] += HELD - 1.0
    assert group.look() == pytest.approx(1.0)
    assert group.broker.said(Request.UNLOCK_BATCH_MQ) == []
    group.clock[0] += 1.0
    group.look()
    told = [(body["clientId"], len(body["mqSet"])) for _, body in group.broker.said(Request.UNLOCK_BATCH_MQ)]
    assert told == ([("n", 5)] if holders == [ME] else [])
    group.broker.holders = [ME]
    group.look()
    assert len(group.broker.said(Request.UNLOCK_BATCH_MQ)) == (holders is None), "one that was seen has its time again"
    group.clock[0] += HELD
    group.look()
    assert len(group.broker.said(Request.UNLOCK_BATCH_MQ)) == (holders == [ME, "n"])
