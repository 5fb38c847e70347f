"""Batch handlers: full batches at once, small ones after the linger, an outcome for each message."""

from __future__ import annotations

import time

import gevent
import pytest
from gevent.event import Event

from framework.errors import BadHandler, Reject, Retry
from framework.transports.contract import Limits


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch):
    monkeypatch.setattr("framework.engine.backoff.RETRY_BASE", 0.01)


def test_a_full_batch_goes_at_once_and_the_rest_after_the_linger(broker, run):
    sizes = []
    worker = run(lambda batch: sizes.append(len(batch)), batch=50, linger=0.1, concurrency=1)
    broker.publish("orders", *[b"x"] * 120)
    worker.until(lambda: len(broker.finished) == 120)
    assert sizes == [50, 50, 20]
    assert worker.stop() == {"received": 120, "finished": 120, "requeued": 0, "dead": 0, "lease_lost": 0}


def test_a_lone_message_waits_for_the_linger_and_no_longer(broker, run):
    handled = []
    worker = run(lambda batch: handled.append(time.monotonic()), batch=50, linger=0.15)
    worker.until(lambda: worker.supervisor.ready)
    began = time.monotonic()
    broker.publish("orders", b"x")
    worker.until(lambda: handled)
    assert 0.14 < handled[0] - began < 0.6


def test_each_small_batch_waits_for_the_whole_linger(broker, run):
    """A timer of gevent's that is started again has nothing left of its time: the second batch went at once."""
    began, waited, sizes = [0.0], [], []

    def function(batch):
        waited.append(time.monotonic() - began[0])
        sizes.append(len(batch))

    worker = run(function, batch=50, linger=0.3)
    worker.until(lambda: worker.supervisor.ready)
    for number in range(1, 4):
        began[0] = time.monotonic()
        broker.publish("orders", b"x")
        gevent.sleep(0.1)
        broker.publish("orders", b"y")
        worker.until(lambda: len(sizes) == number)  # noqa: B023
    assert sizes == [2, 2, 2]
    assert min(waited) >= 0.29


def test_batches_fill_while_all_slots_are_busy(broker, run):
    gate, sizes = Event(), []

    def function(batch):
        sizes.append(len(batch))
        gate.wait()

    worker = run(function, batch=10, linger=0.01, concurrency=1, max_in_flight=100)
    broker.publish("orders", b"x")
    worker.until(lambda: sizes)
    for _ in range(9):
        broker.publish("orders", b"x")
        gevent.sleep(0.02)
    gate.set()
    worker.until(lambda: len(broker.finished) == 10)
    assert sizes == [1, 9]


def test_each_message_of_a_batch_can_have_its_own_outcome(broker, run):
    dead = []

    def function(batch):
        for message in batch:
            if message.body == b"bad":
                batch.fail(message, Reject("bad"))
            elif message.body == b"later" and message.attempts == 1:
                batch.fail(message, Retry(delay=0.01))

    worker = run(function, batch=10, linger=0.02, dead=lambda topic, body: dead.append(topic))
    broker.publish("orders", b"good", b"bad", b"later", b"good")
    worker.until(lambda: len(broker.finished) == 4)
    assert dead == ["orders.billing.dead"]
    assert worker.stop() == {"received": 5, "finished": 3, "requeued": 1, "dead": 1, "lease_lost": 0}


def test_a_batch_that_raises_comes_again_whole(broker, run):
    tries = []

    def function(batch):
        tries.append([message.attempts for message in batch])
        if len(tries) == 1:
            raise OSError("disk full")

    worker = run(function, batch=4, linger=0.05, concurrency=1)
    broker.publish("orders", *[b"x"] * 4)
    worker.until(lambda: len(broker.finished) == 4)
    assert tries[0] == [1] * 4
    assert sorted(attempts for one in tries[1:] for attempts in one) == [2] * 4
    worker.stop()


def test_messages_past_their_attempts_are_dead_lettered_and_the_others_of_the_batch_are_handled(broker, run):
    seen, dead = [], []

    def function(batch):
        for message in batch:
            seen.append((message.body, message.attempts))
            if message.body == b"poison":
                batch.fail(message, ValueError("never"))

    worker = run(function, batch=5, linger=0.02, max_attempts=2, dead=lambda topic, body: dead.append(body))
    broker.publish("orders", b"poison", b"fine")
    worker.until(lambda: len(broker.finished) == 2)
    assert seen == [(b"poison", 1), (b"fine", 1), (b"poison", 2)]
    assert len(dead) == 1


def test_the_leases_of_a_whole_batch_are_kept_while_it_runs(broker, run):
    broker.nodes["a:1"].limits = Limits(lease=0.6, max_lease=60.0, max_grant=2500)
    worker = run(lambda batch: gevent.sleep(1.2), batch=5, linger=0.02, timeout=10)
    broker.publish("orders", *[b"x"] * 5)
    worker.until(lambda: len(broker.finished) == 5)
    assert worker.stop()["lease_lost"] == 0


def test_a_batch_that_can_never_fill_is_refused(run):
    with pytest.raises(BadHandler, match="batch=50 can never fill with max_in_flight=10; set max_in_flight to 50 or more"):
        run(lambda batch: None, batch=50, max_in_flight=10)
