"""A transport over brokers that are made up: what it says of each, reads, makes, lists, and what it does when one is gone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
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
from framework.transports import open_transports
from framework.transports.lease_guard import CERTAIN
from framework.transports.publish_link import Refused
from framework.transports.rocketmq import administration, pulling, topics
from framework.transports.rocketmq import transport as module
from framework.transports.rocketmq.administration import Broker
from framework.transports.rocketmq.connection import PopConnection
from framework.transports.rocketmq.pulled import LEVELS
from framework.transports.rocketmq.pulling import PullConnection
from framework.transports.rocketmq.queues import Place
from framework.transports.rocketmq.requests import MAX_DELAY
from framework.transports.rocketmq.routes import Master
from framework.transports.rocketmq.wire.codes import Answer
from framework.transports.rocketmq.wire.errors import error_of
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.paper import Member, Paper

NEW, OLD = Broker("5.3.3", {}), Broker("4.9.7", {})


class Servers:
    """``routes.NameServers``, which knows what the test says."""

    def __init__(self) -> None:
        self.routes: dict[str, dict[str, Master]] = {}
        self.all = {name: Master(name, f"{name}:1", "c") for name in ("a", "b")}
        self.names: list[str] = []
        self.own: list[str] = []
        self.forgotten = 0

    def route(self, topic: str, *, within: float = 0.0) -> dict[str, Master]:
        return self.routes.get(topic, {})

    def masters_of(self, cluster: str) -> dict[str, Master]:
        return self.all

    def some_masters(self) -> dict[str, Master]:
        return self.all

    def topics(self) -> list[str]:
        return self.names

    def own_topics(self) -> list[str]:
        return self.own

    def queues(self, topic: str) -> list[Place]:
        return []

    def forget(self) -> None:
        self.forgotten += 1


class Sessions:
    """``sessions.Sessions`` that dials nothing."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.back: list[Any] = []
        self.closed = False

    @contextmanager
    def use(self, server: str) -> Iterator[Any]:
        yield self.take(server)

    def take(self, server: str) -> Any:
        if server in self.down:
            raise BrokerUnreachable(f"{server} is down")
        session = Paper()
        session.server = server  # type: ignore[attr-defined]
        return session

    def give_back(self, session: Any) -> None:
        self.back.append(session)

    def close(self) -> None:
        self.closed = True


class House:
    """A transport, and what it knows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, options: str = "") -> None:
        made: Any
        (made,) = open_transports([f"rocketmq://names:9876{options}"])
        self.transport = made
        self.servers, self.sessions = Servers(), Sessions()
        made._servers, made._sessions = self.servers, self.sessions
        self.brokers = dict.fromkeys(("a:1", "b:1"), NEW)
        self.groups: dict[str, list[str]] = {}
        self.made: list[tuple[str, list[str]]] = []
        monkeypatch.setattr(administration, "look_at", lambda session: self.brokers[session.server])
        monkeypatch.setattr(administration, "groups_of", lambda session, topic: self.groups.get(session.server, []))
        monkeypatch.setattr(administration, "groups_that_drop", lambda session: frozenset())
        self.deleted: set[str] = set()
        """Topics that their brokers have no more, which no name server hears of."""
        monkeypatch.setattr(administration, "make_topics", self._make)
        monkeypatch.setattr(administration, "has_topic", lambda session, topic: topic not in self.deleted)
        monkeypatch.setattr(module.SetBack, "look", lambda back: None)

    def _make(self, session: Any, wanted: Any) -> dict[str, Any]:
        if wanted:
            self.made.append((session.server, list(wanted)))
        for name in wanted:
            self.servers.routes.setdefault(name, {})[session.server[0]] = self.servers.all[session.server[0]]
        return {}

    def has(self, topic: str, *nodes: str, **more: Any) -> None:
        self.servers.routes[topic] = {node: Master(node, f"{node}:1", "c", **more) for node in nodes}


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    return House(monkeypatch)


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


# --- making ------------------------------------------------------------------------------------------------


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
