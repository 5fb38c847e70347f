"""A channel as a state machine: every message is in one place, and the next one is the one that it must be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from framework.errors import BrokerUnreachable
from framework.message import Message
from framework.testing.conformance.receiver import StrictReceiver
from framework.transports.memory.queues import DEFAULT_PRIORITY, Channel, Outlook, Stored, Topic

LEASE = 10.0


class Client:
    """A subscriber that takes when the test says."""

    def __init__(self) -> None:
        self.leases: dict[Message, Stored] = {}
        self.granted = 0
        self.woken = False

    def room(self) -> int:
        return self.granted - len(self.leases)

    def wake(self) -> None:
        self.woken = True


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.channel = Channel("c")
        self.clients = [Client(), Client()]
        self.channel.subscribers += self.clients
        self.count = 0
        self.where: dict[bytes, str] = {}
        self.due: dict[bytes, float] = {}
        self.rank: dict[bytes, tuple[int, int]] = {}

    @rule(count=st.integers(1, 4), priority=st.sampled_from([0, DEFAULT_PRIORITY, 10**6]), delay=st.sampled_from([0.0, 5.0]))
    def publish(self, count: int, priority: int, delay: float) -> None:
        fresh = []
        for _ in range(count):
            self.count += 1
            message = Stored(b"%d" % self.count, 0, b"x", self.count, priority)
            fresh.append(message)
            self.rank[message.id] = (priority, self.count)
            self.where[message.id] = "deferred" if delay else "ready"
            self.due[message.id] = self.now + delay
        self.channel.add(fresh, self.now + delay if delay else None)

    @rule(who=st.integers(0, 1), room=st.integers(1, 5))
    def take(self, who: int, room: int) -> None:
        client = self.clients[who]
        client.granted = len(client.leases) + room
        stored = self.channel.take(client, self.now)
        expected = sorted((rank, i) for i, rank in self.rank.items() if self.at(i) == "ready")[: client.room()]
        assert [(self.rank[m.id], m.id) for m in stored] == expected
        batch = [Message(m.id, 0, 1, m.body, SimpleNamespace()) for m in stored]
        self.channel.leased(client, batch, stored, self.now + LEASE, self.now + 2 * LEASE)
        for message in stored:
            self.where[message.id] = "leased"
            self.due[message.id] = self.now + LEASE

    def at(self, identity: bytes) -> str:
        """Where it is now, its time considered."""
        place = self.where[identity]
        return "ready" if place != "ready" and self.due[identity] <= self.now else place

    @precondition(lambda self: any(client.leases for client in self.clients))
    @rule(data=st.data(), delay=st.sampled_from([None, 0.0, 5.0]))
    def settle(self, data: st.DataObject, delay: float | None) -> None:
        self.channel.release(self.now)
        held = [(client, delivery) for client in self.clients for delivery in client.leases]
        if not held:
            return
        client, delivery = data.draw(st.sampled_from(held))
        message = client.leases.pop(delivery)
        if delay is None:
            del self.where[message.id], self.rank[message.id]
        elif delay:
            self.channel.defer(message, self.now + delay)
            self.where[message.id], self.due[message.id] = "deferred", self.now + delay
        else:
            self.channel.ready.put(message)
            self.where[message.id] = "ready"

    @rule(who=st.integers(0, 1))
    def leave_and_come_back(self, who: int) -> None:
        client = self.clients[who]
        for message in client.leases.values():
            self.where[message.id] = "ready"
        self.channel.leave(client)
        assert not client.leases
        self.channel.subscribers.append(client)

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.channel.depth == len(self.where)

    @invariant()
    def it_never_sleeps_past_what_comes_due(self) -> None:
        times = [self.due[i] for i in self.where if self.at(i) != "ready"]
        assert self.channel.next_due <= min(times, default=float("inf"))

    @invariant()
    def whoever_has_room_is_woken_when_something_is_released(self) -> None:
        for client in self.clients:
            client.woken = False
            client.granted = max(client.granted, len(client.leases) + 1)
        before = len(self.channel.ready)
        self.channel.release(self.now)
        if len(self.channel.ready) > before:
            assert all(client.woken for client in self.clients)


TestChannel = Machine.TestCase
TestChannel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("earlier", [False, True])
def test_what_waits_for_the_first_channel_is_copied_to_each_that_is_declared_with_it(earlier: bool) -> None:
    """What is deferred too; to those that are declared later nothing is."""
    topic = Topic()
    (holder,) = topic.holders()
    holder.add([Stored(b"1", 0, b"x", 1), Stored(b"2", 0, b"x", 2)], None)
    holder.add([Stored(b"3", 0, b"x", 3)], 50.0)
    if earlier:
        topic.declare(["a"])
    topic.declare(["a", "b", "c"])
    got: list[Stored] = []
    for name, channel in topic.channels.items():
        client = Client()
        client.granted = 10
        channel.subscribers.append(client)
        mine = name == "a" or not earlier
        assert [one.id for one in channel.take(client, 49.0)] == [b"1", b"2"] * mine
        got += (late := channel.take(client, 50.0))
        assert [one.id for one in late] == [b"3"] * mine
    assert len(set(map(id, got))) == len(got), "each has its own attempts and leases"


@pytest.mark.parametrize(
    ("in_flight", "unsent", "leases", "now", "later"),
    [(2, 0, 2, 2, 0), (1, 0, 3, 1, 0), (0, 1, 1, 1, 0), (1, 2, 3, 3, 0), (0, 0, 3, 0, 3), (0, 0, 0, 0, 0)],
)
def test_what_its_client_has_done_with_is_to_be_done_again_when_its_lease_is_over(
    in_flight: int, unsent: int, leases: int, now: int, later: int
) -> None:
    """And what a client still has is to be done now, as what is ready is."""
    channel, seen = Channel("c"), Outlook(now=10, deferred=20, due=90.0)
    channel.add([Stored(b"1", 0, b"x", 1)], None)
    channel.add([Stored(b"2", 0, b"x", 2), Stored(b"3", 0, b"x", 3)], 50.0)
    for _ in range(2):
        client: Any = SimpleNamespace(
            in_flight=range(in_flight), unsent=lambda: unsent, room=lambda: 0,
            leases={number: Stored(b"%d" % number, 0, b"x", number, deadline=60.0) for number in range(leases)},
        )  # fmt: skip
        channel.subscribers.append(client)
    channel.look(seen, 40.0)
    assert (seen.now, seen.deferred, seen.due) == (10 + 1 + 2 * now, 20 + 2 + 2 * later, 50.0)
    channel.look(seen, 50.0)
    assert (len(channel.ready), channel.next_due) == (3, 60.0 if leases else float("inf"))


def test_it_is_known_when_the_first_of_the_deferred_comes_due() -> None:
    channel = Channel("c")
    assert channel.first_deferred == float("inf")
    channel.add([Stored(b"1", 0, b"x", 1), Stored(b"2", 0, b"x", 2)], 50.0)
    channel.add([Stored(b"3", 0, b"x", 3)], 40.0)
    assert channel.first_deferred == channel.next_due == 40.0
    channel.release(40.0)
    assert channel.first_deferred == channel.next_due == 50.0
    channel.release(60.0)
    assert channel.first_deferred == channel.next_due == float("inf")


def test_what_is_published_without_a_delay_is_there_at_once(transport, broker, monkeypatch):
    delays = []
    monkeypatch.setattr(type(broker), "store", lambda self, topic, bodies, delay, *more: delays.append(delay))
    producer = transport.producer()
    producer.publish("orders", [b"1"])
    producer.publish_each("orders", [b"2", b"3"])
    producer.publish_headed("orders", [b"4"], [{"key": "4"}])
    assert delays == [0.0] * 4


def test_the_largest_body_that_the_broker_takes_is_taken(transport, broker):
    broker.max_size = 10
    transport.producer().publish("orders", [b"x" * 10])
    assert broker.waiting("orders") == [b"x" * 10]


def test_a_connection_without_room_does_not_ask_for_more_without_end(transport, broker, monkeypatch):
    receiver = StrictReceiver()
    receiver.most_granted = 1
    transport.producer().publish("orders", [b"1", b"2"])
    connection = transport.connect(next(iter(broker.nodes)), "orders", "billing", receiver)
    connection.grant(1)
    gevent.sleep(0.001)
    assert len(receiver.taken) == 1
    asked, take = [], Channel.take
    monkeypatch.setattr(Channel, "take", lambda self, *of: asked.append(of) or take(self, *of))
    connection.wake()
    gevent.sleep(0.02)
    assert len(asked) < 5
    connection.finish(receiver.taken[0])
    gevent.sleep(0.001)
    assert [one.body for one in receiver.taken] == [b"1", b"2"]
    connection.close()


def test_the_channels_that_are_to_be_there_are_on_each_node_and_a_topic_without_any(transport, broker):
    broker.add_node()
    transport.ensure("orders", ["a", "b"])
    transport.ensure("mail", [])
    assert [sorted(node.topics) for node in broker.nodes.values()] == [["mail", "orders"]] * 2
    assert [sorted(node.topics["orders"].channels) for node in broker.nodes.values()] == [["a", "b"]] * 2
    assert (transport.channels("orders"), transport.channels("mail")) == ({"a", "b"}, set())


def test_what_waits_in_a_channel_is_told_by_its_name(transport, broker, publish):
    broker.declare("orders", "a", "b")
    publish("orders", b"x")
    receiver = StrictReceiver()
    receiver.most_granted = 1
    connection = transport.connect(next(iter(broker.nodes)), "orders", "b", receiver)
    connection.grant(1)
    gevent.sleep(0.001)
    assert [broker.waiting("orders", name) for name in ("a", "b", "c", None)] == [[b"x"], [], [], [b"x"]]
    assert [broker.in_flight("orders", name) for name in ("a", "b", "c", None)] == [0, 1, 0, 1]
    connection.close()


def test_a_node_that_is_not_there_cannot_be_reached(transport):
    with pytest.raises(BrokerUnreachable, match="nowhere:1 refused the connection"):
        transport.connect("nowhere:1", "orders", "billing", StrictReceiver())
