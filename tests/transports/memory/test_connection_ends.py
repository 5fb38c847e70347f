"""A connection to the memory broker by itself: what is said too late, and what is left of one that has ended."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import gevent
import pytest

from framework.testing.conformance.receiver import StrictReceiver


class Noting(StrictReceiver):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[Any, bytes]] = []

    def lost(self, connection: Any, message: Any, words: str, *, settled: bytes = b"") -> None:
        super().lost(connection, message, words, settled=settled)
        self.told.append((message, settled))


@pytest.mark.parametrize("how", ["finish", "requeue", "touch"])
def test_what_is_said_of_a_message_whose_lease_is_over_is_told_as_lost_with_which_it_was(broker, publish, transport, how):
    publish("orders", b"1", b"2")
    receiver = Noting()
    receiver.most_granted = 2
    connection = transport.connect(next(iter(broker.nodes)), "orders", "billing", receiver)
    connection.grant(2)
    gevent.sleep(0.01)
    over, kept = receiver.taken
    connection.grant(0)
    assert broker.expire(over) == 1
    for message in (over, kept):
        getattr(connection, how)(message, *[0.0] * (how == "requeue"))
    gevent.sleep(0.01)
    assert receiver.told == [(over, b"") if how == "touch" else (None, over.id)]
    assert (receiver.tally.lease_lost, receiver.wrongs) == (1, [])
    assert (receiver.tally.finished, receiver.tally.requeued) == (how == "finish", how == "requeue"), "of the other one"
    connection.close()


@pytest.mark.parametrize("how", ["close", "drop"])
def test_one_that_has_ended_stays_so_whatever_is_said_of_it(broker, publish, transport, how):
    publish("orders", b"finished", b"requeued", b"touched", b"kept")
    receiver = StrictReceiver()
    receiver.most_granted = 5
    connection = transport.connect(next(iter(broker.nodes)), "orders", "billing", receiver)
    assert (connection.granted, connection.exposed, connection.unsent()) == (0, 0, 0)
    connection.grant(5)
    gevent.sleep(0.001)
    finished, requeued, touched, kept = receiver.taken
    connection.finish(finished)
    connection.requeue(requeued, 0.0)
    connection.touch(touched)
    broker.expire(kept, told=True)
    connection.close() if how == "close" else broker.drop()
    gevent.sleep(0.001)
    left = [b"finished"] * (how == "drop") + [b"requeued", b"touched", b"kept"]
    for say in (connection.wake, lambda: connection.grant(5), connection.drain, connection.close):
        say()
        gevent.sleep(0.001)
    assert (receiver.closings, receiver.drains, receiver.taken[4:], receiver.wrongs) == (1, 0, [], [])
    assert (connection.granted, connection.exposed, connection.unsent(), broker.in_flight("orders")) == (0, 0, 0, 0)
    assert [*connection._touches, *connection._told] == []
    assert broker.waiting("orders") == left


def test_what_is_finished_too_late_is_none_of_those_that_are_delivered_twice(broker, publish, transport):
    publish("orders", b"1", b"2")
    receiver = Noting()
    receiver.most_granted = 2
    connection = transport.connect(next(iter(broker.nodes)), "orders", "billing", receiver)
    connection.grant(2)
    gevent.sleep(0.001)
    over, kept = receiver.taken
    connection.grant(0)
    broker.expire(over)
    broker.deliver_twice()
    connection.finish(over)
    gevent.sleep(0.001)
    assert (receiver.told, broker.faults.twice, broker.waiting("orders")) == ([(None, over.id)], 1, [b"1"])
    connection.finish(kept)
    gevent.sleep(0.001)
    assert (receiver.tally.finished, broker.faults.twice, broker.waiting("orders")) == (1, 0, [b"1", b"2"])
    connection.close()


@pytest.mark.parametrize(("seconds", "late"), [(59.0, False), (60.0, True)])
def test_what_is_said_in_the_moment_in_which_a_lease_ends_is_too_late(broker, publish, transport, seconds, late):
    publish("orders", b"x")
    receiver = Noting()
    receiver.most_granted = 1
    connection = transport.connect(next(iter(broker.nodes)), "orders", "billing", receiver)
    connection.grant(1)
    gevent.sleep(0.001)
    connection.grant(0)
    broker.clock.advance(seconds)
    connection.finish(receiver.taken[0])
    gevent.sleep(0.001)
    assert receiver.told == [(None, receiver.taken[0].id)] * late
    assert (broker.waiting("orders"), receiver.tally.finished) == ([b"x"] * late, 1 - late)
    connection.close()


def test_one_that_breaks_while_it_tells_what_is_settled_takes_no_more(broker, publish, transport):
    class Breaking(StrictReceiver):
        def settled(self, connection):
            broker.drop()

    publish("orders", b"1", b"2", b"3")
    receiver = Breaking()
    receiver.most_granted = 2
    connection = transport.connect(next(iter(broker.nodes)), "orders", "billing", receiver)
    connection.grant(2)
    gevent.sleep(0.001)
    connection.finish(receiver.taken[0])
    gevent.sleep(0.001)
    assert (len(receiver.taken), receiver.closings, receiver.wrongs) == (2, 1, [])
    assert [one.attempts for one in broker.stored("orders")] == [1, 1, 0]


def test_nothing_keeps_a_connection_that_has_ended_although_something_would_have_come_later(broker, publish, transport):
    publish("orders", b"x", delay=3600.0)
    connection = transport.connect(next(iter(broker.nodes)), "orders", "billing", StrictReceiver())
    connection.grant(1)
    gevent.sleep(0.001)
    connection.close()
    gone = weakref.ref(connection)
    del connection
    gevent.sleep(0.001)
    gc.collect()
    assert gone() is None


def test_however_often_it_is_woken_it_looks_once_in_a_turn_of_the_hub(broker, publish, transport):
    class Finishing(StrictReceiver):
        def deliver(self, connection, batch):
            connection.finish(batch[0])

    connection, turns = transport.connect(next(iter(broker.nodes)), "orders", "billing", Finishing()), []
    turn = connection._turn
    connection._turn = lambda: turns.append(turn())
    for looked in (1, 2):
        for _ in range(3):
            connection.wake()
        gevent.sleep(0.001)
        assert len(turns) == looked
    connection.grant(1)
    gevent.sleep(0.001)
    publish("orders", b"x")
    gevent.sleep(0.001)
    assert (len(turns), connection._tally.finished) == (4, 1), "what is said in a turn is heard in it"
    connection.close()
