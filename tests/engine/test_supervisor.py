"""Connections to nodes that come, fail and go; and stopping in the right order. On a broker in memory."""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import Any

import gevent
import pytest
from gevent.event import Event
from gevent.lock import Semaphore

from framework.engine.guardian import Guardian
from framework.engine.supervisor import Supervisor
from framework.errors import BadHandler, BrokerUnreachable, HandlerTimeout, cannot_be_reached
from framework.handler import make_spec
from framework.message import Message
from framework.transports.contract import Limits


@pytest.fixture(autouse=True)
def _quick_reconnects(monkeypatch):
    monkeypatch.setattr("framework.engine.backoff.RECONNECT_CAP", 0.05)


def test_every_handler_is_connected_to_every_node(broker, run, spec):
    broker.node("b:1")
    worker = run(spec(len, topic="orders"), spec(len, topic="refunds"))
    worker.until(lambda: len(broker.connections()) == 4)
    assert worker.supervisor.ready
    worker.stop()
    assert not broker.connections()


def test_it_is_not_ready_before_every_handler_has_a_connection(broker, run, spec):
    broker.nodes["a:1"].up = False
    worker = run(spec(len))
    worker.until(lambda: broker.dials >= 2)
    assert not worker.supervisor.ready
    broker.nodes["a:1"].up = True
    worker.until(lambda: worker.supervisor.ready)


def test_a_node_that_dies_and_comes_back_is_used_again_and_nothing_is_lost(broker, run):
    seen = set()

    def function(message):
        seen.add(message.body)
        gevent.sleep(0.001)

    worker = run(function, concurrency=5)
    node = broker.nodes["a:1"]
    broker.publish("orders", *[b"%d" % i for i in range(300)])
    worker.until(lambda: len(seen) > 50)
    node.kill()
    worker.until(lambda: broker.dials >= 4)
    node.up = True
    worker.until(lambda: len(set(broker.finished)) == 300)
    assert len(seen) == 300
    worker.stop()


def test_a_connection_that_ended_gives_its_share_to_the_next(broker, run):
    worker = run(lambda message: None, max_in_flight=1)
    node = broker.nodes["a:1"]
    for number in range(1, 4):
        broker.publish("orders", b"x")
        worker.until(lambda number=number: len(broker.finished) == number)
        node.connections[0].end(ConnectionError("cut"))


def test_one_dead_node_does_not_hold_up_the_others(broker, run):
    broker.node("b:1").up = False
    worker = run(lambda message: None)
    broker.publish("orders", *[b"x"] * 100)
    worker.until(lambda: len(broker.finished) == 100)


def test_a_node_that_appears_is_found_by_the_poll(broker, run):
    worker = run(lambda message: None, supervisor={"poll_interval": 0.05})
    worker.until(lambda: worker.supervisor.ready)
    broker.node("b:1").publish("orders", [b"x"])
    worker.until(lambda: broker.finished)


def test_a_lost_connection_is_followed_by_a_discovery_at_once(broker, run):
    worker = run(lambda message: None, supervisor={"poll_interval": 600.0})
    worker.until(lambda: worker.supervisor.ready)
    broker.node("b:1").publish("orders", [b"x"])
    broker.nodes["a:1"].kill()
    worker.until(lambda: broker.finished)


def test_a_failed_discovery_removes_no_node(broker, run):
    worker = run(lambda message: None, supervisor={"poll_interval": 0.02})
    worker.until(lambda: worker.supervisor.ready)
    broker.discovery_error = BrokerUnreachable("no lookupd answered")
    gevent.sleep(0.1)
    node = broker.nodes["a:1"]
    node.kill()
    node.up = True
    worker.until(lambda: node.connections)


def test_without_a_broker_it_gives_up_at_the_deadline_and_says_what_to_do(broker, run):
    broker.nodes["a:1"].up = False
    worker = run(lambda message: None, supervisor={"connect_deadline": 0.3})
    began = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=r"handler orders/billing: no broker reached within 0.3 s \(a:1 refused"):
        worker.greenlet.get(timeout=5)
    assert time.monotonic() - began < 3


def test_where_discovery_gives_no_answer_it_is_named_at_the_deadline(broker, run):
    broker.discovery_error = BrokerUnreachable("no lookupd answered")
    worker = run(lambda message: None, supervisor={"connect_deadline": 0.3, "poll_interval": 0.05})
    with pytest.raises(BrokerUnreachable, match=r"no broker reached within 0.3 s \(no lookupd answered\)"):
        worker.greenlet.get(timeout=5)


def test_a_node_that_takes_the_connection_and_says_nothing_is_named_at_the_deadline(broker, run, monkeypatch):
    monkeypatch.setattr(broker, "connect", lambda *_, **__: gevent.sleep(5))
    worker = run(lambda message: None, supervisor={"connect_deadline": 0.3})
    with pytest.raises(BrokerUnreachable, match=r"no broker reached within 0.3 s \(a:1 has not answered yet\); start the broker"):
        worker.greenlet.get(timeout=5)


def test_handlers_that_are_connected_one_after_the_other_may_take_longer_than_the_deadline_in_all(broker, run, monkeypatch):
    """Thousands of them on a busy machine."""
    one_at_a_time, connect = Semaphore(), broker.connect

    def slowly(*names: Any) -> Any:
        with one_at_a_time:
            gevent.sleep(0.1)
            return connect(*names)

    monkeypatch.setattr(broker, "connect", slowly)
    handlers = [make_spec(lambda message: None, "orders", f"c{n}", {}) for n in range(20)]
    worker = run(*handlers, supervisor={"connect_deadline": 1.0})
    worker.until(lambda: worker.supervisor.ready)
    assert len(broker.nodes["a:1"].connections) == 20


def test_a_worker_that_may_open_no_more_files_says_which_limit_to_raise(broker, run, monkeypatch):
    def connect(*_: object, **__: object) -> None:
        error = OSError(errno.EMFILE, "Too many open files")
        raise cannot_be_reached("a:1", error) from error

    monkeypatch.setattr(broker, "connect", connect)
    worker = run(lambda message: None, supervisor={"connect_deadline": 0.3})
    with pytest.raises(BrokerUnreachable, match=r"raise the limit of open files \(ulimit -n\)\)$"):
        worker.greenlet.get(timeout=5)


def test_without_a_deadline_it_waits_for_ever(broker, run):
    broker.nodes["a:1"].up = False
    worker = run(lambda message: None, supervisor={"connect_deadline": None})
    worker.until(lambda: broker.dials > 5)
    worker.stop()


def test_a_topic_that_no_node_has_yet_is_waited_for_beyond_the_deadline(broker, run):
    node = broker.nodes.pop("a:1")
    worker = run(lambda message: None, supervisor={"connect_deadline": 0.1, "poll_interval": 0.05})
    gevent.sleep(0.3)
    assert not worker.greenlet.dead
    broker.nodes["a:1"] = node
    worker.until(lambda: worker.supervisor.ready)


def test_a_timeout_that_the_node_cannot_honour_is_refused_with_the_flag_to_change(broker, run):
    broker.nodes["a:1"].limits = Limits(lease=60, max_lease=900, max_grant=2500)
    worker = run(lambda message: None, timeout=1200.0)
    with pytest.raises(BadHandler) as refused:
        worker.greenlet.get(timeout=5)
    assert str(refused.value).endswith(
        ": timeout=1200 is longer than a:1 keeps a message in flight, 900 s: lower timeout, or start it with --lease"
    )


def test_stopping_finishes_what_has_started_and_gives_back_the_rest_at_once(broker, run):
    gate, started = Event(), []

    def function(message):
        started.append(message.id)
        gate.wait()

    worker = run(function, concurrency=3, max_in_flight=10)
    broker.node("b:1")
    broker.publish("orders", *[b"x"] * 20)
    worker.until(lambda: len(started) == 3)
    node = broker.nodes["a:1"]
    worker.supervisor.stop()
    worker.until(lambda: node.connections[0].draining and len(node.queues["orders"]) == 17, seconds=1.0)
    assert not worker.greenlet.dead
    gate.set()
    ledger = worker.end()
    assert sorted(broker.finished) == sorted(started)
    assert ledger["finished"] == 3
    assert ledger["lease_lost"] == 0


def test_no_handler_is_started_after_a_stop_although_handlers_that_compute_keep_the_hub_from_turning(broker, run):
    started = []

    def compute(message):
        started.append(message)
        ends = time.monotonic() + 0.05
        if len(started) == 2:
            worker.supervisor.stop()  # as a signal handler does, between two instructions of a handler
        while time.monotonic() < ends:
            pass

    worker = run(compute, concurrency=4)
    broker.publish("orders", *[b"x"] * 8)
    worker.greenlet.join(timeout=5)
    assert worker.greenlet.dead
    assert len(started) == 2
    counts = worker.supervisor.ledgers["orders/billing"].as_dict()
    assert (counts["finished"], counts["requeued"]) == (2, counts["received"] - 2)


def test_what_still_arrives_while_it_drains_is_given_back_unseen(broker, run):
    gate, seen = Event(), []

    def function(message):
        seen.append(message.body)
        gate.wait()

    worker = run(function)
    broker.publish("orders", b"runs")
    worker.until(lambda: seen)
    connection = broker.connections()[0]
    worker.supervisor.stop()
    worker.until(lambda: connection.draining)
    gevent.get_hub().loop.run_callback(connection.take, [Message(b"%016d" % 99, 0, 1, b"late", connection)])
    worker.until(lambda: broker.nodes["a:1"].queues["orders"])
    gate.set()
    assert worker.end() == {"received": 2, "finished": 1, "requeued": 1, "dead": 0, "lease_lost": 0}
    assert seen == [b"runs"]


def test_leases_are_kept_while_it_drains(broker, run):
    broker.nodes["a:1"].limits = Limits(lease=0.6, max_lease=60.0, max_grant=2500)
    worker = run(lambda message: gevent.sleep(1.5), timeout=20)
    broker.publish("orders", b"x")
    worker.until(lambda: broker.connections() and broker.connections()[0].in_flight)
    connection = broker.connections()[0]
    assert worker.stop() == {"received": 1, "finished": 1, "requeued": 0, "dead": 0, "lease_lost": 0}
    assert connection.touches >= 4


def test_what_has_not_ended_within_the_drain_time_is_given_back(broker, run):
    told = []

    def function(message):
        try:
            gevent.sleep(60)
        except HandlerTimeout as error:
            told.append(str(error))
            raise

    worker = run(function, supervisor={"drain": 0.3})
    broker.publish("orders", b"x", b"y")
    worker.until(lambda: broker.connections() and len(broker.connections()[0].in_flight) == 2)
    began = time.monotonic()
    assert worker.stop() == {"received": 2, "finished": 0, "requeued": 2, "dead": 0, "lease_lost": 0}
    assert 0.25 < time.monotonic() - began < 2
    assert told == ["the worker stops"] * 2


def test_a_second_stop_gives_everything_back_at_once(broker, run):
    worker = run(lambda message: gevent.sleep(60))
    broker.publish("orders", b"x")
    worker.until(lambda: broker.connections() and broker.connections()[0].in_flight)
    worker.supervisor.stop()
    gevent.sleep(0.05)
    began = time.monotonic()
    assert worker.stop()["requeued"] == 1
    assert time.monotonic() - began < 1


def test_a_handler_that_will_not_end_does_not_hold_up_the_stop(broker, run):
    def function(message):
        while True:
            try:
                gevent.sleep(60)
            except HandlerTimeout:
                pass

    worker = run(function)
    broker.publish("orders", b"x")
    worker.until(lambda: broker.connections() and broker.connections()[0].in_flight)
    began = time.monotonic()
    assert worker.stop(now=True)["requeued"] == 1
    assert time.monotonic() - began < 3


def test_a_dead_connection_does_not_hold_up_the_stop(broker, run):
    worker = run(lambda message: gevent.sleep(60))
    broker.publish("orders", b"x")
    worker.until(lambda: broker.connections() and broker.connections()[0].in_flight)
    broker.nodes["a:1"].kill()
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < 2


def test_a_stop_returns_when_the_connections_have_closed(broker, run):
    """The last settlements may take a node a moment; and a process that ends before takes them with it."""
    worker = run(lambda message: None)
    worker.until(lambda: worker.supervisor.ready)
    (connection,) = broker.connections()
    close = connection.close
    connection.close = lambda: gevent.spawn_later(0.2, close)
    worker.stop()
    assert connection.ended


def test_a_node_that_does_not_answer_the_drain_holds_up_the_stop_for_two_seconds_only(broker, run):
    broker.nodes["a:1"].mute = True
    worker = run(lambda message: None)
    worker.until(lambda: worker.supervisor.ready)
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < 4


def test_it_can_be_stopped_before_it_runs(broker, spec):
    supervisor = Supervisor([spec(len)], [broker], publish=lambda topic, body: None)
    supervisor.stop()
    began = time.monotonic()
    supervisor.run()
    assert time.monotonic() - began < 3


def test_it_runs_on_the_hub_of_a_native_thread_and_is_stopped_from_another(broker, spec):
    handled = threading.Event()
    supervisor = Supervisor([spec(lambda message: handled.set())], [broker], publish=lambda topic, body: None)

    def body():
        broker.publish("orders", b"x")
        supervisor.run()
        gevent.get_hub().destroy()

    thread = threading.Thread(target=body)
    thread.start()
    assert handled.wait(10)
    supervisor.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert supervisor.ledgers["orders/billing"].as_dict()["finished"] == 1


@pytest.mark.parametrize("stops", [True, False], ids=["it has stopped", "it was at work"])
def test_of_one_whose_hub_is_gone_no_thread_is_left_and_a_forked_child_finds_nothing(broker, spec, capfd, monkeypatch, stops):
    """Its guardian kept what the tests behind it connected, and would keep leases for ever."""
    guardians: list[Guardian] = []
    monkeypatch.setattr(Guardian, "start", lambda guardian, start=Guardian.start: (guardians.append(guardian), start(guardian)))
    supervisor = Supervisor([spec(len)], [broker], publish=lambda topic, body: None)

    def body():
        greenlet = gevent.spawn(supervisor.run)
        while not supervisor.ready:
            gevent.sleep(0.01)
        if stops:
            supervisor.stop()
            greenlet.join()
        gevent.get_hub().destroy(destroy_loop=True)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(30)
    if (child := os.fork()) == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert "Traceback" not in capfd.readouterr().err
    (guardian,) = guardians
    assert stops or guardian._ended.acquire(timeout=20)


def test_a_fault_of_one_handlers_timer_does_not_stop_the_others(broker, run, spec, monkeypatch, caplog):
    ticked = []

    def tick(consumer, now):
        if consumer.spec.topic == "orders":
            raise ZeroDivisionError
        ticked.append(now)

    monkeypatch.setattr("framework.engine.consumer.Consumer.tick", tick)
    monkeypatch.setattr("framework.engine.consumer.Consumer.at_rest", False)
    worker = run(spec(len, topic="orders"), spec(len, topic="refunds"))
    worker.until(lambda: len(ticked) > 2)
    assert "handler orders/billing: a timer failed" in caplog.text
