"""A membership on paper: what it takes when the connection before it broke, and what goes wrong."""

from __future__ import annotations

import math
from typing import Any

import gevent
import pytest

from framework.errors import BrokerUnreachable, ProtocolError
from framework.transports.rocketmq import membership
from framework.transports.rocketmq.membership import AGAIN, BALANCE, FAILED, HELD, Membership
from framework.transports.rocketmq.queues import Broken, Place
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.group import WHAT, Group
from tests.transports.rocketmq.paper import GROUP, NODE, TOPIC

# --- where the connection before it broke ------------------------------------------------------------------


def test_after_a_break_only_what_was_its_own_is_taken_for_a_time(clock: list[float]) -> None:
    group = Group(clock, broken=Broken(frozenset({Place(TOPIC, NODE, 1)})))
    assert group.look() == pytest.approx(min(BALANCE, HELD))
    assert group.numbers == [1]
    assert group.pasts[GROUP].broke == {}
    clock[0] += HELD - 0.5
    assert group.look() == pytest.approx(0.5)
    assert group.numbers == [1]
    clock[0] += 0.5
    group.look()
    assert group.numbers == [0, 1, 2, 3]


def test_one_that_breaks_again_and_again_takes_the_others_in_the_end(clock: list[float]) -> None:
    began = clock[0] - 1.5 * HELD
    group = Group(clock, broken=Broken(frozenset({Place(TOPIC, NODE, 1)}), began))
    group.look()
    assert group.numbers == [1]
    clock[0] += HELD / 2
    group.look()
    assert group.numbers == [0, 1, 2, 3]


@pytest.mark.parametrize("alone", [True, False])
def test_what_it_had_is_remembered_when_it_breaks(alone: bool, clock: list[float]) -> None:
    began = clock[0] - 1.0
    group = Group(clock, broken=Broken(frozenset({Place(TOPIC, NODE, 1), Place(TOPIC, NODE, 2)}), began) if alone else None)
    group.look()
    del group.shelf.readings[Place(TOPIC, NODE, 2)]
    for reading in group.shelf.readings.values():
        reading.goes_on_at(5)
    group.member.stop(broke=True)
    broken = group.pasts[GROUP].broke[NODE]
    assert sorted(place.number for place in broken.ours if place.topic == TOPIC) == ([1, 2] if alone else [0, 1, 3])
    assert broken.since == (began if alone else None)
    assert group.pasts[GROUP].trails[Place(TOPIC, NODE, 1)].most == 5


def test_what_it_let_go_while_it_was_alone_is_not_its_own_any_more(clock: list[float]) -> None:
    mine = Place(TOPIC, NODE, 1)
    group = Group(clock, broken=Broken(frozenset({mine})))
    group.look()
    group.shelf.wants_queues = False
    group.look()
    group.member.stop(broke=True)
    assert group.pasts[GROUP].broke[NODE].ours == frozenset()


def test_one_that_was_closed_or_never_a_member_leaves_no_word(group: Group) -> None:
    group.member.stop(broke=True)
    assert group.pasts[GROUP].broke == {}
    other = Group(group.clock)
    other.look()
    other.member.stop(broke=False)
    assert other.pasts[GROUP].broke == {}


# --- what goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("failing", "offsets", "error"), [
    ({Request.QUERY_CONSUMER_OFFSET}, {}, BrokerUnreachable), (set(), {1: ""}, ProtocolError),
])  # fmt: skip
def test_a_queue_whose_offset_is_not_said_is_not_read(
    failing: set[int], offsets: dict[int, str], error: type[Exception], group: Group
) -> None:
    group.broker.fails, group.broker.offsets = failing, offsets
    with pytest.raises(error):
        group.look()
    assert 1 not in group.numbers


def test_a_broker_that_lists_no_members_has_none(group: Group) -> None:
    """It answers so for a group that it does not know."""
    said = group.broker._said
    group.broker._said = lambda code, fields, body: (  # type: ignore[method-assign]
        Frame(Answer.SYSTEM_ERROR, remark="no consumer for this group")
        if code == Request.GET_CONSUMER_LIST_BY_GROUP
        else said(code, fields, body)
    )
    assert group.look() == AGAIN
    assert group.numbers == []


@pytest.mark.parametrize("state", ["astray", "hole"])
def test_what_is_still_to_be_found_is_looked_for_soon(state: str, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.look()
    found: list[Any] = []
    monkeypatch.setattr(group.member._sameness, "find", found.append)
    monkeypatch.setattr(membership, "cross", lambda session, what, reading: found.append(reading))
    reading = group.shelf.readings[Place(TOPIC, NODE, 2)]
    setattr(reading, state, 9)
    assert group.look() == FAILED
    assert found == [reading]


def test_a_queue_that_is_another_by_now_ends_the_connection(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group.member._sameness, "is_lost", lambda readings: True)
    group.look()
    gevent.sleep(0.01)
    assert [type(error) for error in group.shelf.losses] == [BrokerUnreachable]


def test_it_looks_by_itself_until_its_session_is_over(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "FAILED", 0.01)
    group = Group(clock)
    session: Any = group.broker
    group.broker.fails = {Request.GET_CONSUMER_LIST_BY_GROUP}
    member = Membership(session, NODE, WHAT, group._places, group.shelf, pasts={})
    member.await_first(5.0)
    assert (group.numbers, group.shelf.balances) == ([], 1)
    group.broker.fails = set()
    gevent.sleep(0.05)
    assert group.numbers == [0, 1, 2, 3]
    group.shelf.readings.clear()
    member.look()
    gevent.sleep(0.01)
    assert group.numbers == [0, 1, 2, 3]
    looks = group.shelf.balances
    gevent.sleep(0.02)
    assert group.shelf.balances == looks, "nothing has changed"
    group.broker.error = BrokerUnreachable("gone")
    member.look()
    gevent.sleep(0.01)
    assert member._greenlet.dead
    assert math.isfinite(member._renewed)
