"""A transport over brokers that are made up: what it says of each, reads, makes, lists, and what it does when one is gone."""

from __future__ import annotations

import math
from typing import Any

import pytest

from framework.errors import (
    BadName,
    BrokerRefuses,
    BrokerUnreachable,
    NegotiationRefused,
    SomeUnreachable,
)
from framework.testing.conformance.receiver import StrictReceiver
from framework.transports.lease_guard import CERTAIN
from framework.transports.rocketmq import administration, pulling
from framework.transports.rocketmq import transport as module
from framework.transports.rocketmq.administration import Broker
from framework.transports.rocketmq.connection import PopConnection
from framework.transports.rocketmq.pulled import LEVELS
from framework.transports.rocketmq.pulling import PullConnection
from framework.transports.rocketmq.requests import MAX_DELAY
from framework.transports.rocketmq.wire.codes import Answer
from framework.transports.rocketmq.wire.errors import error_of
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.brokers import NEW, OLD, House
from tests.transports.rocketmq.paper import Member

# --- what it says of brokers -------------------------------------------------------------------------------


def test_what_a_broker_with_pop_and_timers_can(house: House) -> None:
    (info, _) = house.transport.probe()
    assert (info.node, info.server) == ("a", "RocketMQ 5.3.3 by POP")
    limits = info.limits
    assert (limits.lease, limits.max_requeue, limits.max_defer, limits.goodbye) == (60.0 * CERTAIN, MAX_DELAY, MAX_DELAY, 5.0)
    able = house.transport.capabilities
    assert (able.max_defer, able.touch, able.delay_levels) == (MAX_DELAY, True, ())


def test_what_a_broker_without_pop_can(house: House) -> None:
    house.brokers = dict.fromkeys(house.brokers, OLD)
    (info, _) = house.transport.probe()
    assert info.server == "RocketMQ 4.9.7 by PULL"
    assert (info.limits.lease, info.limits.max_requeue, info.limits.max_defer) == (math.inf, LEVELS[-1], LEVELS[-1])
    able = house.transport.capabilities
    assert (able.touch, able.max_requeue, able.max_defer, able.delay_levels) == (False, LEVELS[-1], LEVELS[-1], LEVELS)


def test_one_broker_without_timers_is_enough_for_short_delays(house: House) -> None:
    house.brokers["b:1"] = Broker("5.3.3", {"timerWheelEnable": "false"})
    house.transport.probe()
    able = house.transport.capabilities
    assert (able.max_defer, able.delay_levels) == (LEVELS[-1], LEVELS)


def test_a_topic_that_is_missing_is_told_where_it_would_not_be_made(house: House) -> None:
    house.brokers = dict.fromkeys(house.brokers, Broker("5.3.3", {"autoCreateTopicEnable": "false"}))
    assert [len(info.obstacles) for info in house.transport.describe("orders", "billing")] == [1, 1]
    house.has("orders", "a")
    assert [(info.node, info.obstacles) for info in house.transport.describe("orders", "billing")] == [("a", ())]
    assert [info.obstacles for info in house.transport.describe("", "")] == [(), ()]


@pytest.mark.parametrize(("pop", "pull", "told"), [(False, True, 1), (True, True, 0), (False, False, 0), (True, False, 0)])
def test_a_channel_that_was_read_by_the_other_mode_alone_is_told(pop: bool, pull: bool, told: int, house: House) -> None:
    house.has("orders", "a")
    house.groups["a:1"] = ["billing"] * pop + ["orders|billing"] * pull
    (info,) = house.transport.describe("orders", "billing")
    assert sum("begins again" in note for note in info.notes) == told
    house.servers.routes.clear()
    assert not any("begins again" in note for info in house.transport.describe("orders", "billing") for note in info.notes)


@pytest.mark.parametrize(("perm", "told"), [(2, 1), (4, 0), (6, 0)])
def test_a_topic_that_nobody_may_read_is_told(perm: int, told: int, house: House) -> None:
    house.has("orders", "a", perm=perm)
    (info,) = house.transport.describe("orders", "billing")
    assert sum("lets nobody read" in note for note in info.notes) == told


def test_brokers_that_are_not_there_are_left_out_and_named_where_all_must_answer(house: House) -> None:
    house.has("orders", "a", "b")
    house.groups["b:1"] = ["billing", "orders|again", "no such name!"]
    assert house.transport.channels("orders") == {"billing", "again"}
    house.sessions.down = {"a:1"}
    assert [info.node for info in house.transport.describe("orders", "billing")] == ["b"]
    with pytest.raises(SomeUnreachable) as some:
        house.transport.channels("orders")
    assert (some.value.down, some.value.answers) == ({"a"}, {"billing", "again"})
    house.sessions.down = {"a:1", "b:1"}
    with pytest.raises(BrokerUnreachable) as none:
        house.transport.channels("orders")
    assert not isinstance(none.value, SomeUnreachable | BrokerRefuses)


def test_where_all_reject_us_that_is_what_it_says(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.has("orders", "a", "b")

    def denied(session: Any, topic: str) -> Any:
        raise error_of(Frame(Answer.NO_PERMISSION, remark="no"))

    monkeypatch.setattr(administration, "groups_of", denied)
    with pytest.raises(BrokerRefuses):
        house.transport.channels("orders")


def test_topics_are_those_that_are_not_rocketmqs(house: House) -> None:
    house.servers.names = ["orders", "eu%2Ebilling", "TBW102", "%RETRY%billing", "own", "a b"]
    house.servers.own = ["own"]
    assert house.transport.topics() == {"orders", "eu.billing"}
    house.servers.some_masters = lambda: 1 / 0  # type: ignore[assignment, return-value]
    with pytest.raises(ZeroDivisionError):  # where there is no broker, what the name servers know is not true of one
        house.transport.topics()


@pytest.mark.parametrize(("mode", "refused"), [("pop", False), ("pull", True)])
def test_names_are_looked_at_as_they_are_read(mode: str, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By PULL both make one group."""
    transport = House(monkeypatch, f"?mode={mode}").transport
    with pytest.raises(BadName, match="something of its own"):
        transport.accept("TBW102", [])
    if refused:
        with pytest.raises(BadName, match="shorten them"):
            transport.accept("t" * 64, ["c" * 64])
    else:
        transport.accept("t" * 64, ["c" * 64])


def test_a_mode_that_was_asked_for_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(monkeypatch, "?mode=pop")
    house.brokers["a:1"] = OLD
    house.has("orders", "a")
    (info,) = house.transport.describe("orders", "billing")
    assert ["leave mode=pop out" in words for words in info.obstacles] == [True]


# --- connecting --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("broker", "kind"), [(NEW, PopConnection), (OLD, PullConnection)])
def test_it_reads_as_the_broker_can_and_gives_the_session_back_at_the_end(
    broker: Broker, kind: type, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "Membership", Member)
    house.brokers["a:1"] = broker
    house.has("orders", "a")
    connection = house.transport.connect("a", "orders", "billing", StrictReceiver())
    assert type(connection) is kind
    assert (house.servers.forgotten, house.sessions.back) == (0, [])
    connection.lost(BrokerUnreachable("gone"))
    assert (house.servers.forgotten, len(house.sessions.back)) == (1, 1)


def test_a_node_without_the_topic_is_not_dialled(house: House) -> None:
    house.has("orders", "a")
    with pytest.raises(BrokerUnreachable, match="no route to topic 'orders' on b"):
        house.transport.connect("b", "orders", "billing", StrictReceiver())


def test_a_node_that_is_down_is_looked_up_anew(house: House) -> None:
    house.has("orders", "a")
    house.sessions.down = {"a:1"}
    with pytest.raises(BrokerUnreachable):
        house.transport.connect("a", "orders", "billing", StrictReceiver())
    assert (house.servers.forgotten, house.sessions.back) == (1, [])


def test_a_node_that_cannot_serve_it_is_left(house: House) -> None:
    house.has("orders", "a")
    house.brokers["a:1"] = Broker("5.3.3", {"timerWheelEnable": "false"})
    with pytest.raises(NegotiationRefused, match="refuses every POP"):
        house.transport.connect("a", "orders", "billing", StrictReceiver())
    assert len(house.sessions.back) == 1


def test_a_session_that_ended_meanwhile_is_given_back(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.has("orders", "a")

    def look(back: Any) -> None:
        back._session.error = BrokerUnreachable("meanwhile")

    monkeypatch.setattr(module.SetBack, "look", look)
    with pytest.raises(BrokerUnreachable, match="meanwhile"):
        house.transport.connect("a", "orders", "billing", StrictReceiver())
    assert len(house.sessions.back) == 1


def test_closing_it_closes_what_it_dialled(house: House) -> None:
    house.transport.close()
    assert house.sessions.closed


def test_only_masters_that_are_known_are_published_to(house: House) -> None:
    assert set(house.transport._writable()) == {"a", "b"}
    with pytest.raises(BrokerUnreachable, match="no master c"):
        house.transport._link("c", 1.0)
