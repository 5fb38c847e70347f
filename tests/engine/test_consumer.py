"""The loop: what is received is dispatched, and settled by its outcome. On a broker in memory."""

from __future__ import annotations

import json
import logging
import time

import gevent
import pytest
from gevent.event import Event
from gevent.lock import RLock

from framework.errors import HandlerTimeout, Reject, Retry, UndecodablePayload
from framework.message import Message
from framework.transports.contract import Limits


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch):
    monkeypatch.setattr("framework.engine.backoff.RETRY_BASE", 0.01)


def test_every_message_is_handled_once_and_finished(broker, run):
    seen = []
    worker = run(lambda message: seen.append(message.body))
    bodies = [b"%d" % i for i in range(1000)]
    broker.publish("orders", *bodies)
    worker.until(lambda: len(broker.finished) == 1000)
    assert seen == bodies
    assert worker.stop() == {"received": 1000, "finished": 1000, "requeued": 0, "dead": 0, "lease_lost": 0}


def test_a_message_that_fails_comes_again_and_the_others_are_not_held_up(broker, run):
    attempts = []

    def function(message):
        if message.body == b"poison":
            attempts.append(message.attempts)
            if message.attempts < 3:
                raise ValueError("not yet")

    worker = run(function, concurrency=1)
    broker.publish("orders", b"poison", *[b"fine"] * 200)
    worker.until(lambda: len(broker.finished) == 201)
    assert attempts == [1, 2, 3]
    assert worker.stop() == {"received": 203, "finished": 201, "requeued": 2, "dead": 0, "lease_lost": 0}


def test_poison_ends_in_the_dead_letter_topic_and_pauses_nobody(broker, run):
    dead = []

    def function(message):
        if message.body.startswith(b"poison"):
            raise ValueError("never")

    worker = run(function, dead=lambda topic, body: dead.append((topic, body)), max_attempts=3, concurrency=2)
    broker.publish("orders", b"poison", *[b"fine"] * 500)
    worker.until(lambda: len(broker.finished) == 501)
    assert [topic for topic, _ in dead] == ["orders.billing.dead"]
    assert worker.stop() == {"received": 503, "finished": 500, "requeued": 2, "dead": 1, "lease_lost": 0}


def test_a_message_past_its_attempts_never_reaches_the_function(broker, run):
    calls = []

    def function(message):
        calls.append(message.attempts)
        raise ValueError("never")

    worker = run(function, dead=lambda topic, body: None, max_attempts=2)
    broker.publish("orders", b"poison")
    worker.until(lambda: worker.ledgers[0].dead == 1)
    assert calls == [1, 2]


def test_a_dead_letter_that_cannot_be_stored_is_tried_again_and_the_message_is_kept(broker, run):
    tries = []

    def publish(topic, body):
        tries.append(topic)
        if len(tries) < 3:
            raise ConnectionError("no broker takes it")

    def function(message):
        raise Reject("no such customer")

    worker = run(function, dead=publish)
    broker.publish("orders", b"x")
    worker.until(lambda: worker.ledgers[0].dead == 1)
    assert len(tries) == 3
    assert worker.stop() == {"received": 3, "finished": 0, "requeued": 2, "dead": 1, "lease_lost": 0}


def test_what_cannot_be_decoded_is_a_dead_letter_at_once(broker, run, spec):
    def decode(message):
        raise UndecodablePayload("not JSON")

    calls, dead = [], []
    worker = run(spec(calls.append, decode=decode), dead=lambda topic, body: dead.append(body))
    broker.publish("orders", b"\xff")
    worker.until(lambda: worker.ledgers[0].dead == 1)
    assert not calls
    assert b"not JSON" in dead[0]


@pytest.mark.parametrize("error", [SystemExit(1), gevent.Timeout(1), gevent.GreenletExit()])
def test_no_exception_of_a_handler_stops_the_worker(broker, run, error):
    errors = [error]

    def function(message):
        while errors:
            raise errors.pop()

    worker = run(function, concurrency=1)
    broker.publish("orders", b"x")
    worker.until(lambda: broker.finished)
    assert worker.stop()["requeued"] == 1


def test_handlers_that_block_run_beside_each_other_up_to_the_concurrency(broker, run):
    running = most = 0

    def function(message):
        nonlocal running, most
        running += 1
        most = max(most, running)
        gevent.sleep(0.002)
        running -= 1

    worker = run(function, concurrency=7)
    broker.publish("orders", *[b"x"] * 200)
    worker.until(lambda: len(broker.finished) == 200)
    assert most == 7


def test_handlers_that_burn_cpu_let_the_hub_turn_every_few_milliseconds(broker, run):
    turns = 0

    def function(message):
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass

    worker = run(function, concurrency=1)
    worker.until(lambda: worker.supervisor.ready)
    connection = broker.connections()[0]
    batch = [Message(b"%016d" % i, 0, 1, b"x", connection) for i in range(200)]
    gevent.get_hub().loop.run_callback(connection.take, batch)
    while len(broker.finished) < 200:
        gevent.sleep(0)
        turns += 1
    assert turns >= 15  # 200 ms in slices of 5 ms


def test_in_flight_never_exceeds_max_in_flight_over_all_nodes(broker, run):
    most = 0

    def function(message):
        nonlocal most
        most = max(most, sum(len(c.in_flight) for c in broker.connections()))
        gevent.sleep(0.001)

    for name in ("b:1", "c:1"):
        broker.node(name)
    worker = run(function, concurrency=20, max_in_flight=8)
    for node in broker.nodes.values():
        node.publish("orders", [b"x"] * 150)
    worker.until(lambda: len(broker.finished) == 450)
    assert 3 <= most <= 8


def test_more_nodes_than_max_in_flight_are_all_served(broker, run):
    for name in ("b:1", "c:1", "d:1"):
        broker.node(name)
    worker = run(lambda message: None, max_in_flight=1)
    for node in broker.nodes.values():
        node.publish("orders", [b"x"] * 5)
    worker.until(lambda: len(broker.finished) == 20)


def test_a_handler_is_stopped_at_its_timeout_and_its_message_comes_again(broker, run, caplog):
    errors = []

    def function(message):
        if message.attempts == 1:
            try:
                gevent.sleep(30)
            except HandlerTimeout as error:
                errors.append(str(error))
                raise

    worker = run(function, timeout=0.2)
    broker.publish("orders", b"x")
    worker.until(lambda: broker.finished)
    assert errors == ["it has run longer than its timeout of 0.2 s"]
    assert worker.stop()["requeued"] == 1


def test_a_handler_that_passes_over_its_own_failures_does_not_pass_over_its_timeout(broker, run):
    attempts = []

    def function(message):
        attempts.append(message.attempts)
        try:
            gevent.sleep(30 if message.attempts == 1 else 0)
        except Exception:
            pass

    worker = run(function, timeout=0.2)
    broker.publish("orders", b"x")
    worker.until(lambda: len(broker.finished) == 1)
    assert attempts == [1, 2]
    assert worker.stop()["requeued"] == 1


@pytest.mark.parametrize("options", [{}, {"batch": 2, "linger": 0.01}])
def test_a_dead_letter_that_takes_too_long_to_store_does_not_cost_the_others_their_outcome(broker, run, caplog, options):
    stored = []

    def publish(topic, body):
        if not stored and b"slow" in body:
            stored.append("begun")
            gevent.sleep(30)
        stored.append(body)

    def function(job):
        raise Reject("no")

    worker = run(function, dead=publish, timeout=0.3, **options)
    broker.publish("orders", b"slow", b"fine")
    worker.until(lambda: len(broker.finished) == 2)
    assert "which is a bug" not in caplog.text
    ledger = worker.stop()
    assert (ledger["dead"], ledger["requeued"]) == (2, 1)


class YieldingLog(logging.Handler):
    """As one that sends to a server does: it waits while it holds its lock, which in a worker is a greenlet's."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def createLock(self):
        self.lock = RLock()

    def emit(self, record):
        gevent.sleep(0.05)
        self.lines.append(record.getMessage())


def test_a_log_that_waits_costs_no_connection_when_a_lease_is_lost(broker, run):
    gate, written = Event(), YieldingLog()
    logging.getLogger("framework").addHandler(written)
    try:
        worker = run(lambda message: gate.wait(), concurrency=2)
        broker.publish("orders", b"x", b"y")
        worker.until(lambda: broker.connections() and len(broker.connections()[0].in_flight) == 2)
        (connection,) = broker.connections()
        first = next(iter(connection.in_flight))
        began = time.monotonic()
        failed = []

        def lose():
            try:
                connection.lose(first)
            except BaseException as error:
                failed.append(error)
            failed.append(time.monotonic() - began)

        holder = gevent.spawn(logging.getLogger("framework").warning, "held")
        gevent.sleep(0.01)
        gevent.get_hub().loop.run_callback(lose)
        worker.until(lambda: failed)
        assert isinstance(failed[0], float)
        worker.until(lambda: any("lost a lease on a:1" in line for line in written.lines))
        holder.get()
        gate.set()
        worker.until(lambda: len(broker.finished) == 2)
        assert worker.stop()["lease_lost"] == 1
    finally:
        logging.getLogger("framework").removeHandler(written)


def test_a_lease_lost_while_the_handler_runs_is_counted_once_and_settles_nothing(broker, run):
    gate = Event()
    worker = run(lambda message: gate.wait())
    broker.publish("orders", b"x")
    worker.until(lambda: broker.connections() and broker.connections()[0].in_flight)
    connection = broker.connections()[0]
    connection.lose(next(iter(connection.in_flight)))
    gate.set()
    worker.until(lambda: broker.finished)
    assert worker.stop() == {"received": 2, "finished": 1, "requeued": 0, "dead": 0, "lease_lost": 1}


def test_waiting_messages_of_a_dead_connection_are_forgotten_and_delivered_again(broker, run):
    gate, calls = Event(), []

    def function(message):
        calls.append(message.body)
        gate.wait()

    other = broker.node("b:1")
    worker = run(function, concurrency=1)
    broker.publish("orders", b"runs")
    worker.until(lambda: calls and other.connections)
    other.publish("orders", [b"waits"])
    worker.until(lambda: other.connections[0].in_flight)
    other.connections[0].end(ConnectionError("cut"))
    gate.set()
    worker.until(lambda: len(broker.finished) == 2)
    assert calls == [b"runs", b"waits"]
    assert worker.stop() == {"received": 3, "finished": 2, "requeued": 0, "dead": 0, "lease_lost": 1}


def test_a_message_whose_lease_is_lost_while_it_waits_is_not_started(broker, run):
    gate, calls = Event(), []

    def function(message):
        calls.append(message.body)
        gate.wait()

    other = broker.node("b:1")
    worker = run(function, concurrency=1)
    broker.publish("orders", b"runs")
    worker.until(lambda: calls and other.connections)
    other.publish("orders", [b"waits"])
    worker.until(lambda: other.connections[0].in_flight)
    other.connections[0].lose(next(iter(other.connections[0].in_flight)))
    gate.set()
    worker.until(lambda: len(broker.finished) == 2)
    assert calls == [b"runs", b"waits"]
    assert worker.stop()["lease_lost"] == 1


def test_leases_are_touched_while_messages_run_and_while_they_wait(broker, run):
    broker.nodes["a:1"].limits = Limits(lease=0.6, max_lease=60.0, max_grant=2500)
    gate = Event()
    worker = run(lambda message: gate.wait(), concurrency=1, max_in_flight=2, timeout=20)
    broker.publish("orders", b"x", b"y")
    worker.until(lambda: broker.connections() and broker.connections()[0].touches >= 3)
    gate.set()
    worker.until(lambda: len(broker.finished) == 2)
    assert worker.stop()["lease_lost"] == 0


def test_failures_are_logged_once_with_what_will_happen_and_never_with_the_body(broker, run, caplog):
    def function(message):
        if message.attempts == 1:
            raise Retry("the bank is closed", delay=0.01)

    with caplog.at_level(logging.INFO):
        worker = run(function)
        broker.publish("orders", b"secret body")
        worker.until(lambda: broker.finished)
        worker.stop()
    lines = [record.getMessage() for record in caplog.records if "attempt" in record.getMessage()]
    assert len(lines) == 1
    assert "attempt 1 failed" in lines[0] or "failed at attempt 1" in lines[0]
    assert "the bank is closed" in lines[0]
    assert "secret" not in caplog.text


@pytest.mark.parametrize("how", ["lease", "connection"])
@pytest.mark.parametrize("batch", [0, 1])
def test_what_is_rejected_when_its_lease_is_lost_leaves_one_letter_and_not_two(broker, run, how, batch):
    """The broker delivers it again, and whoever rejects it then writes the letter."""
    calls, letters = [], []

    def handle(job):
        calls.append(job)
        if len(calls) == 1:
            message = job[0] if batch else job
            message.connection.lose(message) if how == "lease" else message.connection.end(None)
        raise Reject("no such customer")

    worker = run(handle, dead=lambda topic, body: letters.append(body), batch=batch)
    broker.publish("orders", b"one")
    worker.until(lambda: len(calls) == 2 and broker.finished)
    assert len(letters) == 1
    assert json.loads(letters[0].splitlines()[0])["attempts"] == 2
    assert worker.stop() == {"received": 2, "finished": 0, "requeued": 0, "dead": 1, "lease_lost": 1}
