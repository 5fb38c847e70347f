"""Which topics a transport makes, on which brokers, and what it says where it may not. Its brokers are made up."""

from __future__ import annotations

from typing import Any

import pytest

from framework.errors import (
    BrokerRefuses,
    BrokerUnreachable,
    NegotiationRefused,
    SomeUnreachable,
)
from framework.transports.publish_link import Refused
from framework.transports.rocketmq import administration, topics
from framework.transports.rocketmq import transport as module
from framework.transports.rocketmq.administration import Broker
from framework.transports.rocketmq.wire.codes import Answer
from framework.transports.rocketmq.wire.errors import error_of
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.brokers import House


def test_a_topic_is_made_on_all_masters_where_no_broker_has_it(house: House) -> None:
    house.transport.ensure("eu.orders", ["billing"])
    assert sorted(house.made) == [("a:1", ["eu%2Eorders"]), ("b:1", ["eu%2Eorders"])]
    house.transport.ensure("eu.orders", ["billing"])
    assert len(house.made) == 2


@pytest.fixture
def pull_house(monkeypatch: pytest.MonkeyPatch) -> House:
    return House(monkeypatch, "?mode=pull")


def test_by_pull_the_topics_of_what_comes_again_are_made_behind_it(pull_house: House) -> None:
    pull_house.transport.ensure("orders", ["billing", "mail"])
    of_one = [made for server, made in pull_house.made if server == "a:1"]
    assert of_one == [["orders"], ["%RETRY%orders|billing", "%RETRY%orders|mail"]]


def test_by_pull_they_are_made_also_for_a_topic_that_was_there_and_where_one_broker_has_none(pull_house: House) -> None:
    pull_house.has("orders", "a", "b")
    pull_house.has("%RETRY%orders|billing", "a", "b")
    pull_house.has("%RETRY%orders|mail", "a")
    pull_house.transport.ensure("orders", ["billing", "mail", "archive"])
    assert {tuple(made) for _, made in pull_house.made} == {("%RETRY%orders|mail", "%RETRY%orders|archive")}
    pull_house.made.clear()
    pull_house.transport.ensure("orders", ["billing", "mail", "archive"])
    assert pull_house.made == []


def test_who_may_not_make_the_topic_of_what_comes_again_leaves_it_to_the_broker(
    pull_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull_house.has("orders", "a")
    asked: list[list[str]] = []

    def refuse(session: Any, wanted: Any) -> dict[str, Any]:
        asked.append(list(wanted))
        return {name: BrokerUnreachable("no right") for name in wanted}

    monkeypatch.setattr(administration, "make_topics", refuse)
    pull_house.transport.ensure("orders", ["billing"])
    assert asked == [["%RETRY%orders|billing"]] * 2
    pull_house.sessions.down = {"a:1", "b:1"}
    pull_house.transport.ensure("orders", ["billing"])


def test_where_topics_are_not_made_by_themselves_those_of_what_comes_again_are(pull_house: House) -> None:
    """A broker makes them whatever ``autoCreateTopicEnable`` says."""
    pull_house.brokers = dict.fromkeys(pull_house.brokers, Broker("5.3.3", {"autoCreateTopicEnable": "false"}))
    with pytest.raises(BrokerUnreachable, match="has no topic for orders and makes none"):
        pull_house.transport.ensure("orders", ["billing"])
    assert pull_house.made == []
    pull_house.has("orders", "a")
    pull_house.transport.ensure("orders", ["billing"])
    assert ("a:1", ["%RETRY%orders|billing"]) in pull_house.made


@pytest.mark.parametrize("made_there", [["orders"], []])
def test_a_topic_that_was_made_is_waited_for(made_there: list[str], house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(topics, "await_route", lambda routed: asked.append(routed()))
    if not made_there:
        monkeypatch.setattr(
            administration, "make_topics", lambda session, wanted: {name: BrokerUnreachable("full") for name in wanted}
        )
        with pytest.raises(BrokerUnreachable, match="full"):
            house.transport.ensure("orders", [])
    else:
        house.transport.ensure("orders", [])
    assert asked == [True] * len(made_there)


@pytest.mark.parametrize(("denied", "final"), [({"a:1", "b:1"}, True), ({"a:1"}, False)])
def test_who_may_make_no_topic_is_told_which_is_missing(
    denied: set[str], final: bool, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking again gets the same answer, unless another broker has made it."""

    def make(session: Any, wanted: Any) -> dict[str, Any]:
        error = error_of(Frame(Answer.NO_PERMISSION, remark="User:worker"))
        return dict.fromkeys(wanted, error) if session.server in denied else {}

    monkeypatch.setattr(administration, "make_topics", make)
    words = r"a has no topic for eu.orders, and lets this user make none \(.*User:worker\): .* -t eu%2Eorders"
    with pytest.raises(BrokerUnreachable, match=words) as refused:
        house.transport.ensure("eu.orders", [])
    assert isinstance(refused.value, BrokerRefuses) == final


def test_of_several_that_are_made_the_last_is_waited_for(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "ROUTED", 0.01)
    asked: list[str] = []
    route = house.servers.route
    house.servers.route = lambda topic, **more: (asked.append(topic), route(topic))[1]  # type: ignore[method-assign]
    house.transport._make_together(["one", "two", "three"])
    assert set(asked) == {"three"}


def test_a_broker_that_is_down_does_not_keep_others_from_making_it(house: House) -> None:
    house.sessions.down = {"a:1"}
    with pytest.raises(SomeUnreachable):
        house.transport.ensure("orders", [])
    assert house.made == [("b:1", ["orders"])]
    house.servers.routes.clear()
    house.transport.make_on("b", "orders")
    assert len(house.made) == 2


def test_a_topic_is_not_made_where_that_is_switched_off(house: House) -> None:
    house.brokers = dict.fromkeys(house.brokers, Broker("5.3.3", {"autoCreateTopicEnable": "false"}))
    with pytest.raises(BrokerUnreachable, match=r"has no topic for eu\.orders and makes none"):
        house.transport.ensure("eu.orders", [])
    assert house.made == []


def test_a_topic_is_not_made_beside_one_on_another_master(house: House) -> None:
    house.has("orders", "a")
    with pytest.raises(Refused, match="topic 'orders' is on a, and not on b"):
        house.transport.make_on("b", "orders")
    house.transport.make_on("a", "orders")
    assert house.made == []
    home: Any = module._Home(house.transport, house.servers.all["b"])
    home.make("new")
    assert ("b:1", ["new"]) in house.made


def test_a_topic_that_its_broker_has_no_more_is_made_again_there_alone(house: House) -> None:
    house.has("eu%2Eorders", "a", "b")
    house.deleted.add("eu%2Eorders")
    house.transport.make_on("b", "eu.orders")
    assert house.made == [("b:1", ["eu%2Eorders"])]
    house.brokers = dict.fromkeys(house.brokers, Broker("5.3.3", {"autoCreateTopicEnable": "false"}))
    with pytest.raises(NegotiationRefused, match=r"has no topic for eu\.orders and makes none"):
        house.transport.make_on("a", "eu.orders")
    assert len(house.made) == 1


@pytest.mark.parametrize(("perm", "closed"), [(2, False), (6, False), (4, True)])
def test_a_topic_that_takes_no_messages_is_told(perm: int, closed: bool, house: House) -> None:
    house.has("orders", "a", perm=perm, queues=7)
    home: Any = module._Home(house.transport, house.servers.all["a"])
    assert (home.queues("orders"), home.queues("other")) == (7, 0)
    assert bool(home.closed("orders")) is closed
    assert (home.closed("other"), home.has_timers()) == ("", True)
