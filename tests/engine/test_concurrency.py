"""Changing a handler's concurrency while it runs, and draining it: slots come and go, and no message is lost."""

from __future__ import annotations

import time

import gevent
import pytest
from gevent.event import Event

from framework.engine.supervisor import Supervisor
from framework.errors import BadHandler, WrongUse

ORDERS = "orders/billing"


class Gauge:
    """A handler that blocks for a moment, and how many of its calls run at once."""

    def __init__(self, seconds=0.005):
        self.seconds = seconds
        self.running = self.most = self.calls = 0

    def __call__(self, message):
        self.running += 1
        self.most = max(self.most, self.running)
        gevent.sleep(self.seconds)
        self.running -= 1
        self.calls += 1


def test_it_grows_while_messages_wait_and_those_run_at_once(broker, run):
    gate, running = Event(), []

    def function(message):
        running.append(message)
        gate.wait()

    worker = run(function, concurrency=2, max_in_flight=50)
    broker.publish("orders", *[b"x"] * 50)
    worker.until(lambda: len(running) == 2)
    worker.supervisor.set_concurrency(ORDERS, 20)
    worker.until(lambda: len(running) == 20)
    gevent.sleep(0.05)
    assert len(running) == 20
    gate.set()
    worker.until(lambda: len(broker.finished) == 50)
    worker.stop()


def test_it_shrinks_as_calls_end_and_no_more_run_at_once_from_then_on(broker, run):
    gauge = Gauge()
    worker = run(gauge, concurrency=20, max_in_flight=100)
    broker.publish("orders", *[b"x"] * 600)
    worker.until(lambda: gauge.most == 20)
    worker.supervisor.set_concurrency(ORDERS, 3)
    worker.until(lambda: gauge.running <= 3)
    gauge.most = 0
    worker.until(lambda: gauge.calls == 600)
    assert gauge.most == 3
    slots = worker.supervisor._consumers[0]._slots
    worker.until(lambda: len(slots._all) == len(slots._idle) == 3)
    worker.until(lambda: len(set(broker.finished)) == len(broker.finished) == 600)
    worker.stop()


def test_idle_slots_go_at_once_and_new_ones_work(broker, run):
    gauge = Gauge()
    worker = run(gauge, concurrency=10)
    broker.publish("orders", *[b"x"] * 40)
    worker.until(lambda: gauge.calls == 40)
    slots = worker.supervisor._consumers[0]._slots
    worker.supervisor.set_concurrency(ORDERS, 1)
    worker.until(lambda: len(slots._all) == 1)
    gauge.most = 0
    broker.publish("orders", *[b"x"] * 10)
    worker.until(lambda: gauge.calls == 50)
    assert gauge.most == 1
    worker.supervisor.set_concurrency(ORDERS, 5)
    broker.publish("orders", *[b"x"] * 50)
    worker.until(lambda: gauge.calls == 100)
    assert gauge.most == 5
    worker.stop()


@pytest.mark.parametrize("slots", ["greenlet", "thread"])
def test_changed_again_and_again_under_load_every_message_is_handled_once(broker, run, slots):
    seen = []
    worker = run(lambda message: (gevent.sleep(0.001), seen.append(message.id)), concurrency=10, slots=slots)
    for index in range(30):
        broker.publish("orders", *[b"x"] * 50)
        worker.supervisor.set_concurrency(ORDERS, (1, 30, 2, 7, 50)[index % 5])
        gevent.sleep(0.01)
    worker.until(lambda: len(broker.finished) >= 1500, 30)
    assert len(seen) == len(set(seen)) == len(broker.finished) == 1500
    assert worker.stop()["received"] == 1500


def test_threads_end_when_they_are_too_many(broker, run):
    worker = run(lambda message: time.sleep(0.01), concurrency=8, slots="thread")
    broker.publish("orders", *[b"x"] * 40)
    worker.until(lambda: len(broker.finished) == 40)
    places = worker.supervisor._consumers[0]._remote
    assert places._started > 2
    worker.supervisor.set_concurrency(ORDERS, 2)
    worker.until(lambda: places._started <= 2)
    broker.publish("orders", *[b"x"] * 20)
    worker.until(lambda: len(broker.finished) == 60)
    assert places.usable == 2
    worker.stop()


@pytest.mark.parametrize(("number", "words"), [
    (0, r"^handler orders/billing: concurrency=0 is not a whole number of calls.*; to have none, pause it$"),
    (101, r"concurrency=101 can never be reached with max_in_flight=100: raise max_in_flight first"),
])  # fmt: skip
def test_a_concurrency_that_it_cannot_have_is_refused(broker, spec, number, words):
    supervisor = Supervisor([spec(len)], [broker], publish=print)
    with pytest.raises(BadHandler, match=words):
        supervisor.set_concurrency(ORDERS, number)


def test_a_drained_handler_gives_back_what_waits_ends_what_runs_and_takes_no_more_until_it_is_resumed(broker, run):
    gate, running = Event(), []

    def function(message):
        if message.body == b"block":
            running.append(message.id)
            gate.wait()

    worker = run(function, concurrency=2, max_in_flight=200, supervisor={"drain": 5})
    broker.publish("orders", *[b"quick"] * 2000, *[b"block"] * 100)  # so many are read ahead as are handled soon
    worker.until(lambda: len(running) == 2 and len(worker.supervisor._consumers[0]._queue) > 0)
    consumer = worker.supervisor._consumers[0]
    worker.supervisor.drain(ORDERS)
    worker.until(lambda: not consumer._queue and len(broker.connections()[0].in_flight) == 2)
    gate.set()
    worker.until(lambda: not broker.connections()[0].in_flight)
    gevent.sleep(1.3)  # what was given back would come again
    assert len(running) == 2
    worker.supervisor.resume(ORDERS)
    worker.until(lambda: len(set(broker.finished)) == 2100)
    worker.stop()


@pytest.mark.parametrize("call", ["drain", "set_concurrency"])
def test_a_handler_that_is_not_here_is_refused(broker, spec, call):
    supervisor = Supervisor([spec(len)], [broker], publish=print)
    with pytest.raises(WrongUse, match=r"^there is no handler 'order/billing' here: name one of orders/billing$"):
        getattr(supervisor, call)("order/billing", *[5] * (call == "set_concurrency"))
