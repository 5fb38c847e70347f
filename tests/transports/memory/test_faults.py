"""Each fault that a test can ask the memory broker for: it happens, and no message is lost by it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.event import Event

from framework.errors import BrokerUnreachable, PublishError, Retry
from framework.transports import open_transports
from framework.transports.memory import forget


@pytest.fixture(autouse=True)
def _quick_reconnects(monkeypatch):
    monkeypatch.setattr("framework.engine.backoff.RECONNECT_CAP", 0.05)


def test_a_connection_that_breaks_costs_a_delivery(run, publish, broker):
    gate, attempts = Event(), []

    def function(message):
        attempts.append(message.attempts)
        if message.attempts == 1:
            gate.wait()

    worker = run(function)
    publish("orders", b"x")
    worker.until(lambda: attempts == [1])
    broker.drop()
    worker.until(lambda: worker.ledger.finished == 1)
    gate.set()
    assert worker.stop() == {"received": 2, "finished": 1, "requeued": 0, "dead": 0, "lease_lost": 1}
    assert attempts == [1, 2]


def test_what_was_settled_when_the_connection_broke_comes_again(run, publish, broker):
    def function(message):
        if message.attempts == 1:
            message.connection.finish(message)
            broker.drop()
            gevent.sleep(0)

    worker = run(function)
    publish("orders", b"x")
    worker.until(lambda: worker.ledger.received == 2 and not broker.in_flight("orders"))
    assert worker.stop() == {"received": 2, "finished": 1, "requeued": 0, "dead": 0, "lease_lost": 1}


def test_a_broker_that_is_down_refuses_everybody_and_has_lost_nothing_when_it_is_back(run, publish, broker, transport):
    seen = []
    worker = run(lambda message: seen.append(message.body))
    broker.stop()
    with pytest.raises(PublishError) as refused:
        publish("orders", b"refused")
    assert refused.value.stored is False
    with pytest.raises(BrokerUnreachable):
        transport.connect(f"{broker.name}:1", "orders", "billing", worker)
    worker.until(lambda: not worker.supervisor.ready)
    broker.start()
    publish("orders", b"x")
    worker.until(lambda: seen == [b"x"])


def test_while_one_node_is_down_publishes_go_to_another_and_its_own_messages_wait_for_it(run, publish, broker):
    first, second = broker.nodes[f"{broker.name}:1"], broker.add_node()
    publish("orders", b"1")
    first.stop()
    publish("orders", b"2")
    assert (first.depth("orders", "billing"), second.depth("orders", "billing")) == (1, 1)
    seen = []
    worker = run(lambda message: seen.append(message.body))
    worker.until(lambda: seen == [b"2"])
    first.start()
    worker.until(lambda: sorted(seen) == [b"1", b"2"])


def test_a_finish_that_is_lost_is_found_out_when_the_lease_is_over(run, publish, broker):
    attempts = []
    worker = run(lambda message: attempts.append(message.attempts))
    broker.lose_finishes(1)
    publish("orders", b"x")
    worker.until(lambda: worker.ledger.finished == 1)
    assert broker.in_flight("orders", "billing") == 1
    broker.clock.advance(59)
    gevent.sleep(0.01)
    assert attempts == [1]
    broker.clock.advance(1.1)
    worker.until(lambda: attempts == [1, 2] and not broker.in_flight("orders"))
    assert worker.stop() == {"received": 2, "finished": 2, "requeued": 0, "dead": 0, "lease_lost": 0}


@pytest.mark.parametrize("told", [{}, {"told": True}])
def test_a_lease_that_runs_out_has_its_message_delivered_again_and_the_first_call_settles_nothing(run, publish, broker, told):
    gates, calls = {1: Event(), 2: Event()}, []

    def function(message):
        calls.append(message.attempts)
        gates[message.attempts].wait()

    worker = run(function)
    publish("orders", b"x")
    worker.until(lambda: calls == [1])
    assert broker.expire(**told) == 1
    worker.until(lambda: calls == [1, 2])
    assert worker.ledger.lease_lost == len(told)
    gates[1].set()
    worker.until(lambda: worker.ledger.lease_lost == 1)
    assert broker.in_flight("orders") == 1
    gates[2].set()
    worker.until(lambda: not broker.in_flight("orders"))
    assert worker.stop() == {"received": 2, "finished": 1, "requeued": 0, "dead": 0, "lease_lost": 1}


def test_one_lease_alone_can_be_ended(run, publish, broker):
    deliveries, gate = [], Event()

    def function(message):
        deliveries.append((message.body, message.attempts))
        if (message.body, message.attempts) == (b"x", 1):
            broker.expire(message)
        else:
            gate.wait()

    worker = run(function)
    publish("orders", b"x", b"y")
    worker.until(lambda: len(deliveries) == 3)
    gate.set()
    worker.until(lambda: not broker.in_flight("orders"))
    assert sorted(deliveries) == [(b"x", 1), (b"x", 2), (b"y", 1)]


def test_a_touch_after_the_lease_has_run_out_tells_that_it_is_lost(run, publish, broker):
    lost, gate = [], Event()

    def function(message):
        if message.attempts == 1:
            broker.expire()
            message.touch()
            gevent.sleep(0.01)
            lost.append(message.settled)

    worker = run(function)
    publish("orders", b"x")
    worker.until(lambda: lost and not broker.in_flight("orders"))
    gate.set()
    assert lost == [True]
    assert worker.stop() == {"received": 2, "finished": 1, "requeued": 0, "dead": 0, "lease_lost": 1}


def test_a_message_can_be_delivered_again_although_it_was_finished(run, publish, broker):
    seen = []
    worker = run(lambda message: seen.append((message.id, message.body, message.attempts)))
    broker.deliver_twice()
    publish("orders", b"x")
    publish("orders", b"y")
    worker.until(lambda: len(seen) == 3)
    (x,) = {entry[0] for entry in seen if entry[1] == b"x"}
    assert [entry for entry in seen if entry[1] == b"x"] == [(x, b"x", 1), (x, b"x", 2)]


def test_deliveries_can_be_delayed_by_the_brokers_clock(run, publish, broker):
    seen = []
    worker = run(lambda message: seen.append(message.body))
    broker.delay_deliveries(30)
    publish("orders", b"x")
    gevent.sleep(0.01)
    assert seen == []
    broker.clock.advance(30)
    worker.until(lambda: seen == [b"x"])


def test_what_is_given_back_is_delayed_as_well_beside_its_own_delay(run, publish, broker):
    attempts = []

    def function(message):
        attempts.append(message.attempts)
        if message.attempts == 1:
            broker.delay_deliveries(30)
            raise Retry(delay=10)

    worker = run(function)
    publish("orders", b"x")
    worker.until(lambda: attempts == [1] and not broker.in_flight("orders"))
    broker.clock.advance(39)
    gevent.sleep(0.01)
    assert attempts == [1]
    broker.clock.advance(1)
    worker.until(lambda: attempts == [1, 2])


def test_a_refused_publish_is_not_stored_and_the_publisher_knows(publish, broker, transport):
    broker.refuse_publishes(1)
    with pytest.raises(PublishError) as refused:
        publish("orders", b"x")
    assert refused.value.stored is False
    broker.refuse_publishes(1)
    answers = transport.producer().publish_each("orders", [b"1", b"2"])
    assert (isinstance(answers[0], PublishError), answers[1]) == (True, None)
    assert broker.waiting("orders") == [b"2"]


@pytest.mark.parametrize("kept", [True, False])
def test_a_publish_without_an_answer_may_be_stored_or_not_and_the_publisher_cannot_know(publish, broker, kept):
    broker.lose_answers(1, kept=kept)
    with pytest.raises(PublishError) as lost:
        publish("orders", b"x")
    assert lost.value.stored is None
    assert broker.waiting("orders") == [b"x"] * kept


def test_one_answer_is_lost_where_it_is_not_said_how_many(publish, broker):
    broker.lose_answers()
    with pytest.raises(PublishError):
        publish("orders", b"x")
    publish("orders", b"y")
    assert broker.waiting("orders") == [b"x", b"y"]


def test_a_broker_that_is_forgotten_is_down_for_those_who_still_have_it(broker):
    forget(broker.name)
    with pytest.raises(PublishError, match="no node of"):
        broker.store("orders", [b"x"], 0.0, None)


def test_a_connection_that_drains_has_no_grant(broker):
    [transport] = open_transports([broker.url])
    receiver: Any = SimpleNamespace(tally=SimpleNamespace(lease_lost=0), drained=lambda _: None, closed=lambda *_: None)
    connection = transport.connect(next(iter(broker.nodes)), "orders", "billing", receiver)
    connection.grant(5)
    connection.drain()
    assert connection.granted == 0
    connection.close()


@pytest.mark.parametrize(
    ("fault", "left"),
    [
        ("lose_finishes", "lost_finishes"),
        ("deliver_twice", "twice"),
        ("refuse_publishes", "refuse"),
        ("lose_answers", "no_answer"),
    ],
)
def test_a_fault_is_asked_for_once_where_it_is_not_said_how_often_and_more_are_added(broker, fault, left):
    getattr(broker, fault)()
    assert getattr(broker.faults, left) == 1
    getattr(broker, fault)(2)
    assert getattr(broker.faults, left) == 3


def test_the_clock_is_the_real_one_and_what_was_added(broker):
    for added in (0.0, 30.0, 40.0):
        low = time.monotonic(), time.time()
        now, wall = broker.clock.now() - added, broker.clock.wall() - added
        assert low[0] - 1e-6 <= now <= time.monotonic() + 1e-6
        assert low[1] - 1e-6 <= wall <= time.time() + 1e-6
        assert broker.clock.real(now + added) == pytest.approx(now)
        broker.clock.advance(30.0 if not added else 10.0)


def test_time_does_not_go_back(broker):
    with pytest.raises(ValueError, match=r"advance\(-1\): time goes forward only"):
        broker.clock.advance(-1)


def test_under_every_fault_at_once_all_is_handled_and_the_books_balance(run, publish, broker):
    done = set()

    def function(message):
        gevent.sleep(0.001)
        if int(message.body) % 7 == 0 and message.attempts < 2:
            raise ValueError("once")
        done.add(message.body)

    broker.add_node()
    workers = [run(function, concurrency=5, max_attempts=0) for _ in range(2)]
    for n in range(300):
        publish("orders", b"%d" % n)
        if n % 40 == 10:
            broker.drop()
        if n % 40 == 20:
            broker.expire(told=n % 80 == 20)
        if n % 40 == 30:
            broker.lose_finishes(2)
            broker.deliver_twice()
        gevent.sleep(0.001)

    def all_done():
        gevent.sleep(0.02)  # what runs may end before its lease does
        broker.clock.advance(1000)
        return len(done) == 300 and not any(node.depth("orders", "billing") for node in broker.nodes.values())

    workers[0].until(all_done)
    for worker in workers:
        worker.stop()
