"""The weight of a worker is its free slots: servers are told of it, once for a turn, and send by it."""

from __future__ import annotations

from contextlib import suppress

import gevent
import pytest

from framework.transports.nats_route.weights import PER_SLOT

from .conftest import Cluster, peer_of, until

pytestmark = pytest.mark.real


class Fixed:
    """A member that always asks for the same."""

    def __init__(self, weight: int) -> None:
        self._weight, self.count = weight, 0

    def weight(self, members: int) -> int:
        return self._weight

    def heard(self, messages: list[object]) -> None:
        self.count += len(messages)

    def lonely(self, error: Exception) -> None: ...


def weights(transport: object) -> list[int]:
    """What others than ``transport`` ask for, as it hears."""
    return sorted(peer_of(transport).interests.wanted(b"orders").groups.get(b"billing", {}).values())


def watching(cluster: Cluster):
    """A peer that only listens."""
    transport = cluster.open()
    transport.start(None)
    peer_of(transport).reach()
    return transport


def test_it_falls_with_each_message_and_rises_with_each_that_is_settled(one):
    watcher = watching(one)
    held = one.hold(one.open(), capacity=3)
    until(lambda: weights(watcher) == [3 * PER_SLOT])
    client = one.client()
    for left in (2 * PER_SLOT, PER_SLOT, 3):
        client.publish("orders", b"x")
        until(lambda left=left: weights(watcher) == [left])
    held.connection.finish(held.taken[0])
    until(lambda: weights(watcher) == [PER_SLOT])


def test_what_waits_here_takes_room_as_what_runs_does_and_a_pause_takes_all(one):
    watcher = watching(one)
    held = one.hold(one.open(), grant=1, capacity=3)
    one.client().publish("orders", b"runs", b"waits")
    until(lambda: weights(watcher) == [PER_SLOT])
    held.grant(3)
    held.connection.finish(held.taken[0])
    until(lambda: weights(watcher) == [2 * PER_SLOT])
    held.grant(0)
    held.connection.finish(held.taken[1])
    until(lambda: weights(watcher) == [1])
    held.grant(1)
    until(lambda: weights(watcher) == [3 * PER_SLOT])


def test_all_workers_of_a_channel_together_stay_within_the_bound(one):
    watcher = watching(one)
    for _ in range(5):
        one.hold(one.open(), capacity=100)
    until(lambda: len(weights(watcher)) == 5)
    client = one.client()
    for _ in range(
        20
    ):  # whoever joined early did not know of the others, and says so again with a message: servers draw who gets it
        client.publish("orders", *[b"x"] * 20)
        with suppress(AssertionError):
            until(lambda: sum(weights(watcher)) <= 5000, 1.0)
            return
    assert sum(weights(watcher)) <= 5000


def test_servers_hear_of_it_once_for_many_messages(one):
    watcher = watching(one)
    heard: list[object] = []
    interests = peer_of(watcher).interests
    add = interests.add
    interests.add = lambda *said: (heard.append(said), add(*said))
    held = one.hold(one.open(), grant=200, capacity=10)
    client = one.client()
    until(lambda: heard)
    heard.clear()
    client.publish("orders", *[b"x"] * 150)
    until(lambda: len(held.taken) == 150)
    gevent.sleep(0.05)
    assert 1 <= len(heard) <= 30


def test_the_first_weight_counts_also_where_a_server_remembers_who_gets_the_subject(one):
    """Of a new member the servers take the first RS+ for a weight of 1 then: 0.5 of the messages in place of 0.9."""
    client = one.client()
    client.subscribe("orders")
    client.publish("orders", b"x", b"x")
    few, many = Fixed(1), Fixed(9)
    for member in (few, many):
        peer_of(watching(one)).join(b"orders", b"billing", member)
    gevent.sleep(0.1)
    client.publish("orders", *[b"x"] * 4000)
    until(lambda: few.count + many.count == 4000)
    assert abs(few.count - 400) < 5 * (4000 * 0.1 * 0.9) ** 0.5
