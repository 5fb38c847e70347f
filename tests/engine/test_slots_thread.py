"""Thread slots: what a thread can do that a greenlet cannot, and what becomes of one that does not return."""

from __future__ import annotations

import contextvars
import gc
import hashlib
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator

import gevent
import pytest
from gevent.event import Event

from framework.engine.ledger import Ledger
from framework.errors import Retry


class Thing:
    """What a call may leave."""


leftover: contextvars.ContextVar[Thing] = contextvars.ContextVar("leftover")
request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="none")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """A native event; set at the end, so that no thread is left behind."""
    event = threading.Event()
    yield event
    event.set()


def test_handlers_that_block_in_c_hold_up_neither_the_hub_nor_each_other(broker, run):
    def function(message):
        time.sleep(0.5)
        hashlib.scrypt(b"x", salt=b"y", n=2**10, r=8, p=1)

    worker = run(function, slots="thread", concurrency=20)
    worker.until(lambda: worker.supervisor.ready)
    began = time.monotonic()
    broker.publish("orders", *[b"x"] * 20)
    turns = 0
    while len(broker.finished) < 20:
        gevent.sleep(0.005)
        turns += 1
    assert turns > 10
    assert time.monotonic() - began < 20 * 0.5  # one after the other
    worker.stop()


def test_what_a_handler_raises_in_its_thread_is_its_messages_failure_and_no_others(broker, run):
    tries = Counter()

    def function(message):
        tries[message.body] += 1
        if message.body == b"bad" and tries[b"bad"] < 3:
            raise Retry(delay=0.0)

    worker = run(function, slots="thread", concurrency=2)
    broker.publish("orders", b"good", b"bad", b"good too")
    worker.until(lambda: len(broker.finished) == 3)
    assert tries == {b"good": 1, b"bad": 3, b"good too": 1}
    assert worker.stop() == {"received": 5, "finished": 3, "requeued": 2, "dead": 0, "lease_lost": 0}


def test_threads_are_started_when_they_are_needed_and_end_with_the_worker(broker, run):
    threads = set()
    worker = run(lambda message: threads.add(threading.get_ident()), slots="thread", concurrency=50)
    for _ in range(20):
        broker.publish("orders", b"x")
        done = len(broker.finished)
        worker.until(lambda before=done: len(broker.finished) > before)
    assert len(threads) == 1
    assert threads.isdisjoint({threading.get_ident()})
    worker.stop()
    deadline = time.monotonic() + 10
    import sys

    while threads & set(sys._current_frames()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_context_variables_of_the_app_are_seen_and_what_a_call_sets_is_its_own(broker, run):
    seen = []

    def function(message):
        seen.append(request_id.get())
        request_id.set(message.body.decode())

    token = request_id.set("the app's")
    try:
        worker = run(function, slots="thread", concurrency=1)
        broker.publish("orders", b"first", b"second")
        worker.until(lambda: len(broker.finished) == 2)
    finally:
        request_id.reset(token)
    assert seen == ["the app's", "the app's"]
    worker.stop()


@pytest.mark.parametrize("options", [{}, {"batch": 1, "linger": 0.0}])
@pytest.mark.parametrize("waits", [False, True])
def test_greenlets_see_context_variables_of_the_app_as_well_and_none_of_another_call(broker, run, waits, options):
    seen = []

    def function(_):
        seen.append(request_id.get())
        request_id.set(f"call {len(seen)}")
        if waits:
            mine = request_id.get()
            gevent.sleep(0.001)
            assert request_id.get() == mine

    token = request_id.set("the app's")
    try:
        worker = run(function, concurrency=2, **options)
        broker.publish("orders", *[b"x"] * 6)
        worker.until(lambda: len(broker.finished) == 6)
    finally:
        request_id.reset(token)
    assert seen == ["the app's"] * 6
    assert worker.stop()["requeued"] == 0


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_call_left_in_its_context_is_let_go_of_with_it_where_the_app_has_none_of_its_own(broker, run, fails):
    seen: list[str] = []
    alive: list[weakref.ref[Thing]] = []

    def function(_):
        seen.append(request_id.get())
        thing = Thing()
        alive.append(weakref.ref(thing))
        request_id.set("a call's")
        leftover.set(thing)
        if fails and len(seen) % 2:
            raise Retry(delay=0.0)

    worker = contextvars.Context().run(run, function, concurrency=2)
    broker.publish("orders", *[b"x"] * 6)
    worker.until(lambda: len(broker.finished) == 6)
    assert seen == ["none"] * len(seen)
    gc.collect()
    assert not any(thing() for thing in alive)
    worker.stop()


def test_a_value_that_cannot_be_compared_does_not_stay_either(broker, run):
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ValueError("as an array does")

        __hash__ = None  # type: ignore[assignment]

    seen: list[str] = []
    odd: contextvars.ContextVar[object] = contextvars.ContextVar("odd", default=None)

    def function(_):
        seen.append(type(odd.get()).__name__)
        odd.set(Odd())

    token = odd.set("the app's")
    try:
        worker = run(function, concurrency=2)
        broker.publish("orders", *[b"x"] * 6)
        worker.until(lambda: len(broker.finished) == 6)
    finally:
        odd.reset(token)
    assert seen == ["str"] * 6
    assert worker.stop() == {"received": 6, "finished": 6, "requeued": 0, "dead": 0, "lease_lost": 0}


def test_a_call_that_waits_by_gevent_in_its_thread_is_named_with_its_line_too(broker, run, gate, caplog):
    """The thread is in its hub then, and of that the log had the lines."""

    def function(message):
        while message.attempts == 1 and not gate.is_set():  # here it waits
            gevent.sleep(0.05)  # here it waits

    worker = run(function, slots="thread", concurrency=2, timeout=0.2)
    broker.publish("orders", b"hang")
    worker.until(lambda: "does not return" in caplog.text)
    assert "# here it waits" in caplog.text
    gate.set()
    worker.until(lambda: len(broker.finished) == 1)


def test_a_thread_that_does_not_return_is_named_with_its_line_and_its_place_is_not_given_to_another(broker, run, gate, caplog):
    calls = []

    def function(message):
        calls.append(message.body)
        if message.body == b"hang" and message.attempts == 1:
            gate.wait()  # here it hangs

    worker = run(function, slots="thread", concurrency=2, timeout=0.2)
    broker.publish("orders", b"hang")
    worker.until(lambda: "does not return" in caplog.text)
    assert "1 of 2 threads are left" in caplog.text
    assert "gate.wait()  # here it hangs" in caplog.text
    broker.publish("orders", *[b"fine"] * 50)
    worker.until(lambda: len(broker.finished) == 51)
    assert calls.count(b"hang") == 2
    with caplog.at_level("INFO"):
        gate.set()
        worker.until(lambda: "is in service again" in caplog.text)
    assert worker.stop() == {"received": 52, "finished": 51, "requeued": 1, "dead": 0, "lease_lost": 0}


def test_a_handler_without_a_thread_left_takes_no_messages_until_one_returns(broker, run, gate, caplog, monkeypatch):
    monkeypatch.setattr("framework.engine.valve.JAMMED", 0.1)
    handled = []

    def function(message):
        if message.body == b"hang":
            gate.wait()
        handled.append(message.body)

    worker = run(function, slots="thread", concurrency=2, timeout=0.2, max_attempts=1, dead=lambda topic, body: None)
    broker.publish("orders", b"hang", b"hang")
    worker.until(lambda: "so this handler takes no messages" in caplog.text)
    worker.until(lambda: broker.connections()[0].granted == 0)
    broker.publish("orders", b"fine")
    gevent.sleep(0.3)
    assert not broker.connections()[0].in_flight
    assert "waited too long" not in caplog.text, "nothing was there to wait"
    gate.set()
    worker.until(lambda: b"fine" in handled and len(broker.finished) == 3)
    assert worker.stop()["lease_lost"] == 0


def test_one_handler_in_threads_leaves_another_in_greenlets_alone(broker, run, spec, gate):
    done = Event()
    worker = run(
        spec(lambda message: gate.wait(), slots="thread", concurrency=1, topic="slow"),
        spec(lambda message: done.set(), topic="quick"),
    )
    broker.publish("slow", b"x")
    worker.until(lambda: broker.connections() and any(c.in_flight for c in broker.connections()))
    broker.publish("quick", b"x")
    worker.until(done.is_set)
    gate.set()
    worker.stop()


def test_many_results_are_taken_in_one_wake_up(broker, run):
    worker = run(lambda message: None, slots="thread", concurrency=8, max_in_flight=500)
    broker.publish("orders", *[b"x"] * 5000)
    worker.until(lambda: len(broker.finished) == 5000, seconds=60)
    assert worker.stop() == Ledger(received=5000, finished=5000).as_dict()
