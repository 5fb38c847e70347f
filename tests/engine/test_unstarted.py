"""What leaves the queue without having been started costs no attempt, however it leaves. On a broker in memory."""

from __future__ import annotations

from collections import deque

import gevent
import pytest
from gevent.event import Event

from framework.engine import unstarted
from framework.engine.batches import BatchQueue
from framework.engine.unstarted import Unstarted
from framework.engine.waiting import Waiting
from framework.errors import AlreadySettled, Backoff
from framework.message import Message
from framework.transports.contract import Limits


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr("framework.engine.waiting.PUT_OFF", 0.05)


def nobody_hears(message):
    """Of what is given back; a print may come in the middle of a later test of what is printed."""


def waiting(run, function, **options):
    """A worker of one slot that lets messages wait, whatever would become of them."""
    worker = run(function, concurrency=1, max_attempts=1, **options)
    worker.until(lambda: worker.supervisor.ready)
    consumer = worker.supervisor._consumers[0]
    consumer.flow.credit._concurrency = 100
    consumer.flow.credit.bear(float("inf"))
    return worker, consumer


def test_what_waits_too_long_is_given_back_and_run_later_with_all_its_attempts(broker, run):
    broker.node("a:1").limits = Limits(lease=0.6, max_lease=1.0, max_grant=100)
    attempts, deliveries = [], []

    def function(message):
        attempts.append(message.attempts)
        if message.body == b"long":
            gevent.sleep(0.9)

    worker, consumer = waiting(run, function, timeout=1.0)
    give_back = consumer._unstarted.give_back

    def watched(messages, delay):
        deliveries.extend([delay] * len(messages))
        give_back(messages, delay)

    consumer._unstarted.give_back = watched
    broker.publish("orders", b"long", *[b"short"] * 5)
    worker.until(lambda: len(broker.finished) == 6)
    assert attempts == [1] * 6
    assert deliveries == [0.05] * 5, "each of them once: while the slot is taken no more is asked for"
    assert worker.stop() == {"received": 11, "finished": 6, "requeued": 5, "dead": 0, "lease_lost": 0}


def test_nothing_is_asked_for_while_what_waited_too_long_is_on_its_way_back(broker, run):
    broker.node("a:1").limits = Limits(lease=0.6, max_lease=1.0, max_grant=100)
    gate = Event()
    worker, _ = waiting(run, lambda message: gate.wait(), timeout=1.0)
    broker.publish("orders", *[b"x"] * 4)
    worker.until(lambda: worker.ledgers[0].requeued == 3)
    (connection,) = broker.connections()
    gevent.sleep(0.2)  # ticks, and what is given back is at the broker again
    assert (connection.granted, len(connection.in_flight)) == (1, 1)
    gate.set()
    worker.until(lambda: len(broker.finished) == 4)
    worker.stop()


def test_a_pause_gives_back_what_waits_and_costs_it_nothing(broker, run, monkeypatch):
    monkeypatch.setattr("framework.engine.backoff.PAUSE_BASE", 0.05)
    calls = []

    def function(message):
        calls.append((message.body, message.attempts))
        gevent.sleep(0.02)
        if message.body == b"0" and len(calls) == 1:
            raise Backoff("down", delay=0.0)

    worker, _ = waiting(run, function)
    broker.publish("orders", *[b"%d" % n for n in range(6)])
    worker.until(lambda: len(broker.finished) >= 5)
    assert {attempts for body, attempts in calls if body != b"0"} == {1}
    worker.stop()


def test_what_waits_when_its_connection_ends_has_not_been_started_either(broker, run):
    gate, attempts = Event(), []

    def function(message):
        if message.body == b"long" and not gate.is_set():
            gate.wait()
        attempts.append((message.body, message.attempts))

    worker, _ = waiting(run, function)
    broker.publish("orders", b"long", b"short", b"short")
    (connection,) = broker.connections()
    worker.until(lambda: len(connection.in_flight) == 3)
    connection.end(None)
    gate.set()
    worker.until(lambda: len(attempts) >= 3)
    assert attempts.count((b"short", 1)) == 2
    worker.stop()


def test_a_lease_that_is_lost_in_the_queue_costs_no_attempt(broker, run):
    gate, attempts = Event(), []

    def function(message):
        gate.wait()
        attempts.append((message.body, message.attempts))

    worker, _ = waiting(run, function)
    broker.publish("orders", b"long", b"short")
    (connection,) = broker.connections()
    worker.until(lambda: len(connection.in_flight) == 2)
    connection.lose(list(connection.in_flight)[-1])
    gate.set()
    worker.until(lambda: len(broker.finished) == 2)
    assert attempts == [(b"long", 1), (b"short", 1)]
    worker.stop()


def test_a_batch_lingers_no_longer_than_its_first_message_can_wait(broker, run):
    broker.node("a:1").limits = Limits(lease=0.6, max_lease=1.0, max_grant=100)
    attempts = []
    worker = run(lambda batch: attempts.extend(m.attempts for m in batch), batch=10, linger=30.0, timeout=1.0, max_attempts=1)
    broker.publish("orders", b"x", b"y")
    worker.until(lambda: len(broker.finished) == 2)
    assert attempts == [1, 1]
    assert worker.stop()["requeued"] == 0


class Nowhere:
    """A connection on which nothing is in flight any more."""

    node, topic = "a:1", "orders"

    def requeue(self, message, delay):
        raise AlreadySettled("gone")


def test_only_the_latest_are_remembered(monkeypatch):
    monkeypatch.setattr(unstarted, "MOST", 3)
    memory = Unstarted()
    first, *others = [Message(b"%d" % n, 0, 9, b"", Nowhere()) for n in range(4)]
    memory.give_back([first], 0.0)
    memory.lost(others)
    assert memory.given_back == 0
    memory.correct([first, *others])
    assert [message.attempts for message in (first, *others)] == [9, 8, 8, 8]


def test_a_first_delivery_stays_the_first_whatever_is_remembered():
    memory = Unstarted()
    memory.lost([Message(b"1", 0, 1, b"", Nowhere())] * 3)
    again = [Message(b"1", 0, attempts, b"", Nowhere()) for attempts in (1, 2, 5)]
    memory.correct(again)
    assert [message.attempts for message in again] == [1, 1, 2]


class Holding:
    """A connection that counts what it is told."""

    node, topic = "a:1", "orders"

    def __init__(self):
        self.in_flight = {}
        self.requeued = []

    def message(self, attempts, name=b"1"):
        message = Message(name, 0, attempts, b"", self)
        self.in_flight[message] = 0.0
        return message

    def requeue(self, message, delay):
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled("gone")
        self.requeued.append((message, delay))


class Keeps:
    """Keeps what has had ``limit`` deliveries, one at a time and when it is let to."""

    def __init__(self, limit, *, stores=True):
        self.limit, self.stores = limit, stores
        self.open = Event()
        self.asked, self.at_once = [], 0

    def must_keep(self, message, deliveries):
        return deliveries >= self.limit

    def keep(self, message, seconds):
        self.asked.append((message, seconds))
        self.at_once += 1
        self.open.wait(5)
        return self.stores


def settling(connection):
    kept = []

    def settle(message):
        if connection.in_flight.pop(message, None) is not None:
            kept.append(message)

    return kept, settle


def test_what_others_would_give_up_is_stored_with_its_count_and_the_rest_is_requeued():
    connection, room = Holding(), Keeps(3)
    kept, settle = settling(connection)
    memory = Unstarted(room, settle)
    second, third = connection.message(2, b"2"), connection.message(3, b"3")
    memory.give_back([second, third], 0.5)
    assert connection.requeued == [(second, 0.5)]
    gevent.sleep(0.01)
    assert (room.asked, list(connection.in_flight)) == ([(third, 0.5)], [third]), "in flight until it is stored"
    room.open.set()
    gevent.sleep(0.01)
    assert (kept, connection.in_flight, memory.given_back) == ([third], {}, 2)


def test_a_forked_child_stores_nothing_of_what_its_parent_was_about_to_store():
    connection, room = Holding(), Keeps(1)
    memory = Unstarted(room, nobody_hears)
    waiting = Waiting(deque([connection.message(1, b"queued")]), memory)
    memory.give_back([connection.message(1, b"%d" % n) for n in range(3)], 0.5)
    waiting.forget()
    room.open.set()
    gevent.sleep(0.01)
    assert (room.asked, list(waiting.queue)) == ([], [])
    assert len(connection.in_flight) == 4, "they are the parent's"


@pytest.mark.parametrize("kind", ["messages", "batches"])
def test_what_is_lost_is_taken_out_without_a_look_at_all_that_waits(kind, monkeypatch):
    """Thousands are lost one by one after a pause, and the hub is needed for what comes meanwhile."""

    class Counted(deque):
        looks = 0

        def __iter__(self):
            Counted.looks += 1
            return super().__iter__()

    monkeypatch.setattr("framework.engine.batches.deque", Counted)
    connection = Holding()
    messages = [connection.message(n, b"%d" % n) for n in range(1000)]
    queue = Counted() if kind == "messages" else BatchQueue(gevent.get_hub(), 100, 0.01, lambda: None)
    queue.extend(messages)
    here = Waiting(queue, Unstarted(Keeps(1), nobody_hears))
    stranger = connection.message(1, b"1")
    for message in [*messages[5:], *messages[:2], stranger]:
        here.lost(message)
    assert Counted.looks == 0
    assert list(queue) == messages[2:5]
    if isinstance(queue, BatchQueue):
        gevent.sleep(0.05)
        assert list(queue.popleft()) == messages[2:5], "what is left waits no longer than it would have"
        queue.extend(messages[:1])
        here.lost(messages[0])
        gevent.sleep(0.05)
        assert not queue, "there is no empty batch"
        queue.close()


def test_the_brokers_count_decides_and_not_the_one_that_is_shown():
    """What this worker knows to have waited, another worker does not know."""
    connection, room = Holding(), Keeps(3)
    memory = Unstarted(room, nobody_hears)
    memory.give_back([connection.message(1)], 0.0)
    again = connection.message(2)
    memory.correct([again])
    assert again.attempts == 1
    memory.give_back([again], 0.0)
    last = connection.message(3)
    memory.correct([last])
    assert last.attempts == 1
    memory.give_back([last], 0.0)
    assert (len(connection.requeued), list(connection.in_flight)) == (2, [last])


def test_what_cannot_be_stored_is_requeued_and_so_is_what_cannot_wait_any_longer():
    connection, room = Holding(), Keeps(1, stores=False)
    memory = Unstarted(room, nobody_hears)
    message, impatient = connection.message(1, b"1"), connection.message(1, b"2")
    memory.give_back([message, impatient], 0.0)
    gevent.sleep(0.01)
    memory.give_back([impatient], 0.0)
    assert connection.requeued == [(impatient, 0.0)]
    room.open.set()
    gevent.sleep(0.01)
    assert connection.requeued == [(impatient, 0.0), (message, 0.0)]


def test_many_are_stored_some_at_a_time_and_none_that_was_settled_meanwhile(monkeypatch):
    monkeypatch.setattr(unstarted, "AT_ONCE", 4)
    connection, room = Holding(), Keeps(1)
    kept, settle = settling(connection)
    memory = Unstarted(room, settle)
    messages = [connection.message(1, b"%d" % n) for n in range(10)]
    memory.give_back(messages, 0.0)
    gevent.sleep(0.01)
    assert room.at_once == 4
    connection.in_flight.pop(messages[-1])
    room.open.set()
    gevent.sleep(0.01)
    assert kept == messages[:-1]
    assert [message for message, _ in room.asked] == messages[:-1]


def test_a_stop_from_another_thread_leaves_what_runs_and_what_must_be_stored():
    connection = Holding()
    first, last = connection.message(1, b"1"), connection.message(3, b"2")
    memory = Unstarted(Keeps(3), nobody_hears)
    assert [message in unstarted.Kept({first}, memory) for message in (first, last, connection.message(2, b"3"))] == [
        True, True, False,
    ]  # fmt: skip
    assert last not in unstarted.Kept((), Unstarted())
