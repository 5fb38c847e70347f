"""Pausing a handler and changing its max_in_flight while it runs. On a broker in memory."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import gevent
import pytest
from gevent.event import Event

from framework.app import App
from framework.engine import credit
from framework.engine.supervisor import Supervisor
from framework.errors import BadHandler, WrongUse
from framework.settings import Settings

ORDERS = "orders/billing"


def in_a_thread(call, *arguments):
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()


def test_a_paused_handler_gets_nothing_until_it_is_resumed_and_what_ran_goes_on(broker, run):
    gate, ended = Event(), []

    def function(message):
        gate.wait()
        ended.append(message.body)

    worker = run(function, concurrency=3)
    broker.publish("orders", *[b"before"] * 2)
    worker.until(lambda: broker.connections() and len(broker.connections()[0].in_flight) == 2)
    (connection,) = broker.connections()
    worker.supervisor.pause(ORDERS)
    worker.until(lambda: connection.granted == 0)
    broker.publish("orders", *[b"after"] * 50)
    gate.set()
    worker.until(lambda: ended == [b"before"] * 2)
    gevent.sleep(0.2)  # four ticks, in which nothing must be granted
    assert (connection.granted, ended) == (0, [b"before"] * 2)
    worker.supervisor.resume(ORDERS)
    worker.until(lambda: len(ended) == 52)
    worker.stop()


def test_resume_asks_for_as_much_as_before_in_the_same_turn_of_the_hub(broker, run):
    worker = run(lambda message: None, max_in_flight=2500, concurrency=100)
    worker.until(broker.connections)
    (connection,) = broker.connections()
    consumer = worker.supervisor._consumers[0]
    consumer.flow.credit.shares[0].headroom = 64
    consumer.flow.grants._decay.start(lambda: None)  # the traffic does not slacken
    consumer.settled(connection)
    assert connection.granted == 64
    consumer.flow.pause(True)
    assert connection.granted == 0
    gevent.sleep(0.15)
    consumer.flow.pause(False)
    assert connection.granted == 64
    worker.stop()


def test_a_hub_that_hardly_waits_keeps_what_it_may_be_sent_where_an_idle_one_lowers_it(broker, run, monkeypatch):
    monkeypatch.setattr(credit, "PATIENCE", 60.0)
    worker = run(lambda message: None, max_in_flight=2500, concurrency=100)
    worker.until(broker.connections)
    consumer = worker.supervisor._consumers[0]
    hub = consumer.flow.grants._turns = SimpleNamespace(mean=0.0, idle=0.0)
    share = consumer.flow.credit.shares[0]
    share.headroom, share.since = 64, time.monotonic()
    consumer.flow.grants._decay.start(consumer.flow.grants._lower)
    gevent.sleep(5 * credit.SPAN)
    assert share.headroom == 64
    hub.idle = 1.0
    worker.until(lambda: share.headroom == 1)
    worker.stop()


def test_a_pause_of_one_handler_leaves_the_others_alone(broker, run, spec):
    done = []
    worker = run(spec(len, topic="orders"), spec(done.append, topic="refunds"))
    worker.until(lambda: worker.supervisor.ready)
    worker.supervisor.pause(ORDERS)
    broker.publish("refunds", *[b"x"] * 100)
    worker.until(lambda: len(done) == 100)
    assert worker.supervisor.ready
    worker.stop()


def test_a_handler_may_be_paused_before_it_runs_and_from_any_thread(broker, run, spec):
    done = []
    worker = run(spec(lambda message: done.append(message.body)))
    in_a_thread(worker.supervisor.pause, ORDERS)
    broker.publish("orders", b"x")
    worker.until(lambda: worker.supervisor.ready)
    gevent.sleep(0.1)
    assert not done
    in_a_thread(worker.supervisor.resume, ORDERS)
    worker.until(lambda: done)
    worker.stop()


def test_a_paused_handler_stops_as_any_other(broker, run):
    worker = run(lambda message: None)
    worker.until(lambda: worker.supervisor.ready)
    worker.supervisor.pause(ORDERS)
    worker.until(lambda: broker.connections()[0].granted == 0)
    broker.publish("orders", *[b"x"] * 10)
    worker.supervisor.stop()
    assert worker.end()["received"] == 0


def test_max_in_flight_follows_what_is_set_up_and_down(broker, run):
    gate, running = Event(), []

    def function(message):
        running.append(message)
        gate.wait()

    worker = run(function, concurrency=20, max_in_flight=4)
    broker.publish("orders", *[b"x"] * 100)
    worker.until(lambda: len(running) == 4)
    (connection,) = broker.connections()
    in_a_thread(worker.supervisor.set_max_in_flight, ORDERS, 9)
    worker.until(lambda: len(connection.in_flight) == 9)
    worker.supervisor.set_max_in_flight(ORDERS, 2)
    worker.until(lambda: connection.granted <= 2)
    assert len(running) == 9
    gate.set()
    worker.until(lambda: len(broker.finished) == 100)
    worker.stop()


def test_max_in_flight_lowered_is_kept_once_what_was_over_it_is_settled(broker, run):
    most, after = [], []

    def function(message):
        gevent.sleep(0.005)
        connection = broker.connections()[0]
        (after if connection.granted <= 2 else most).append(len(connection.in_flight))
        if len(most) == 30 and not after:
            worker.supervisor.set_max_in_flight(ORDERS, 2)

    worker = run(function, concurrency=20, max_in_flight=10)
    broker.publish("orders", *[b"x"] * 100)
    worker.until(lambda: len(most) + len(after) == 100)
    assert max(most) > 5
    assert len(after) >= 50
    assert max(after[10:]) <= 2  # what was in flight when its broker was told is ten at most
    worker.stop()


@pytest.mark.parametrize("call", ["pause", "resume", "set_max_in_flight"])
def test_a_handler_that_is_not_here_is_refused_in_a_sentence_that_names_those_that_are(broker, spec, call):
    supervisor = Supervisor([spec(len), spec(len, topic="refunds")], [broker], publish=print)
    with pytest.raises(
        WrongUse, match=r"^there is no handler 'order/billing' here: name one of orders/billing, refunds/billing$"
    ):
        getattr(supervisor, call)("order/billing", *[5] * (call == "set_max_in_flight"))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, r"^handler orders/billing: max_in_flight=0 is not a whole number of messages.*; to have none, pause it$"),
        ("5", r"max_in_flight='5' is not"),
        (9, r"^handler orders/billing: batch=10 can never fill with max_in_flight=9"),
    ],
)
def test_a_max_in_flight_that_it_cannot_have_is_refused_and_changes_nothing(broker, spec, number, words):
    supervisor = Supervisor([spec(len, batch=10)], [broker], publish=print)
    with pytest.raises(BadHandler, match=words):
        supervisor.set_max_in_flight(ORDERS, number)
    assert supervisor._max_in_flight == {ORDERS: 100}


def test_an_app_that_does_not_run_says_so(spec):
    app = App([spec(len)], Settings())
    with pytest.raises(WrongUse, match=r"^this App does not run, so no handler of it can be changed"):
        app.pause(ORDERS)
