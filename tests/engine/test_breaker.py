"""A handler whose dependency is down gets no messages, then one to try with, and never stays without."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gevent
import pytest

from framework.engine import backoff
from framework.errors import Backoff, Reject, Retry
from framework.message import Message

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """And retries that come back at once: what is measured here is the handler's pause, not the message's."""
    monkeypatch.setattr(backoff, "PAUSE_BASE", 0.2)
    monkeypatch.setattr(backoff, "PAUSE_CAP", 0.5)
    monkeypatch.setattr(backoff, "RETRY_CAP", 0.01)


class Dependency:
    """What the handler needs; ``error`` is what the handler raises while it is down."""

    def __init__(self, error: Callable[[], Exception] = Backoff) -> None:
        self.down = False
        self.error = error
        self.calls: list[float] = []
        self.done: set[bytes] = set()

    def handle(self, message: Message) -> None:
        self.calls.append(time.monotonic())
        if self.down:
            raise self.error()
        self.done.add(message.body)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


@pytest.mark.parametrize("batch", [0, 3])
def test_a_few_poison_messages_that_wait_in_envelopes_pause_nobody_however_often_they_fail(
    broker: Any, run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Each time they come back under another id: the broker takes no delay as long as that of a retry."""
    monkeypatch.setattr(backoff, "retry_delay", lambda attempts: 0.4)
    broker.capabilities = replace(broker.capabilities, max_requeue=0.3, max_defer=0.3)
    failures: list[bytes] = []

    def publish(topic: str, body: bytes, *, delay: float = 0.0) -> None:
        broker.publish(topic)  # the topic is there at once
        gevent.spawn_later(delay, broker.publish, topic, body)

    def handle(job: Any) -> None:
        failures.extend(message.body for message in (job if batch else [job]))
        raise ValueError("poison")

    running = run(handle, dead=publish, max_attempts=0, batch=batch, linger=0.01)
    broker.publish("orders", *numbered(backoff.FEWEST_FAILURES - 1))
    running.until(lambda: len(failures) >= 4 * backoff.FEWEST_FAILURES)
    running.stop()
    assert set(failures) == set(numbered(backoff.FEWEST_FAILURES - 1))
    assert "it gets no messages" not in caplog.text


def test_poison_that_another_worker_has_tried_pauses_nobody(
    broker: Any, run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comes back to any of the workers when all the others are done."""
    monkeypatch.setattr(backoff, "retry_delay", lambda attempts: 0.3)
    poison = {b"%d" % n for n in range(0, 1_000, 11)}
    failures: Counter[bytes] = Counter()

    def handle(message: Message) -> None:
        if message.body in poison:
            failures[message.body] += 1
            raise ValueError("poison")

    running = [run(handle, max_attempts=0) for _ in range(3)]
    running[0].until(lambda: len(broker.connections()) == 3)
    broker.publish("orders", *numbered(1_000))
    running[0].until(lambda: len(failures) == len(poison) and min(failures.values()) >= 5)
    for one in running:
        one.stop()
    assert "it gets no messages" not in caplog.text


@pytest.mark.parametrize("size", [2, 20])
def test_a_batch_of_which_one_item_fails_has_not_failed(
    broker: Any, run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(backoff, "retry_delay", lambda attempts: 60.0)
    done: list[int] = []

    def handle(batch: Any) -> None:
        failed, *others = batch
        if others:
            batch.fail(failed, ValueError("this one is odd"))
        done.append(len(others))

    running = run(handle, batch=size, linger=0.01, max_attempts=0)
    broker.publish("orders", *numbered(100 * size))
    running.until(lambda: len(done) >= 100)
    running.stop()
    assert sum(done) >= 100 * size / 2
    assert "it gets no messages" not in caplog.text


@pytest.mark.parametrize("error", [Backoff, ValueError])
def test_while_it_is_down_few_messages_are_tried_and_then_all_are_done(error: Any, broker: Any, run: Run) -> None:
    needed = Dependency(error)
    needed.down = True
    running = run(needed.handle, max_attempts=0)
    broker.publish("orders", *numbered(500))
    running.until(lambda: len(needed.calls) >= (1 if error is Backoff else backoff.FEWEST_FAILURES))
    gevent.sleep(1.0)
    assert len(needed.calls) < 40, "a pause of 0.1 s at least after each that fails"
    needed.down = False
    running.until(lambda: len(needed.done) == 500)
    ledger = running.stop()
    assert ledger["finished"] == 500


def test_during_a_pause_the_broker_is_asked_for_nothing_and_then_for_one(broker: Any, run: Run) -> None:
    needed = Dependency()
    needed.down = True
    running = run(needed.handle, max_attempts=0)
    broker.publish("orders", *numbered(50))
    [connection] = broker.connections() or running.until(broker.connections) or broker.connections()
    running.until(lambda: needed.calls and connection.granted == 0)
    assert not connection.in_flight
    running.until(lambda: connection.granted == 1)
    needed.down = False
    running.until(lambda: len(needed.done) == 50)
    running.stop()


def test_one_poison_message_does_not_hold_up_the_others(broker: Any, run: Run) -> None:
    done: list[bytes] = []

    def handle(message: Message) -> None:
        if message.body == b"poison":
            raise ValueError("odd")
        done.append(message.body)

    running = run(handle, max_attempts=0)
    broker.publish("orders", b"poison")
    for number in range(50):
        broker.publish("orders", b"%d" % number)
        running.until(lambda: done and done[-1] == b"%d" % number, 5)  # noqa: B023 - called within the round
        assert all(connection.granted > 0 for connection in broker.connections())
    running.stop()


@pytest.mark.parametrize("size", [0, 4])
def test_the_failures_of_a_burst_are_weighed_with_what_went_well_in_it(
    size: int, broker: Any, run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fast handler is through with all of it before the next tick; one in eleven, or of the batches a third, failed then."""
    monkeypatch.setattr(backoff, "retry_delay", lambda attempts: 60.0)  # together they would be batches of poison only
    done: set[bytes] = set()

    def handle(job: Any) -> None:
        for message in job if size else [job]:
            if int(message.body) % 11 == 0:
                raise ValueError("poison")
            done.add(message.body)

    running = run(handle, max_attempts=0, **({"batch": size} if size else {}))
    broker.publish("orders", *numbered(1_100))
    good = {body for body in numbered(1_100) if int(body) % 11}
    running.until(lambda: len(done) >= (600 if size else len(good)))
    running.stop()
    assert not [record for record in caplog.records if "it gets no messages" in record.message]


@pytest.mark.parametrize("answer", [lambda: Retry("later", delay=0), Reject])
def test_an_answer_of_the_handlers_own_closes_the_breaker(answer: Any, broker: Any, run: Run) -> None:
    """It asks for the message later, or never: so it works."""
    needed = Dependency()
    needed.down = True
    running = run(needed.handle, max_attempts=0, dead=lambda topic, body: None)
    broker.publish("orders", *numbered(20))
    running.until(lambda: needed.calls)
    needed.error = answer
    running.until(lambda: len(needed.calls) >= 21)
    needed.down = False
    running.stop()


def test_the_end_of_the_connection_in_a_probe_leaves_nothing_stuck(broker: Any, run: Run) -> None:
    needed = Dependency()
    needed.down = True
    running = run(needed.handle, max_attempts=0)
    broker.publish("orders", *numbered(30))
    node = broker.node("a:1")
    for _ in range(3):
        calls = len(needed.calls)
        running.until(lambda: len(needed.calls) > calls)  # noqa: B023
        node.kill()
        node.up = True
    needed.down = False
    running.until(lambda: len(needed.done) == 30)
    running.stop()


def test_a_lease_that_is_lost_in_a_probe_leaves_nothing_stuck(broker: Any, run: Run) -> None:
    needed = Dependency()
    needed.down = True
    hanging = gevent.event.Event()

    def handle(message: Message) -> None:
        if needed.down or not needed.calls or hanging.is_set():
            needed.handle(message)
        else:
            needed.calls.append(time.monotonic())
            hanging.wait()

    running = run(handle, max_attempts=0)
    broker.publish("orders", *numbered(30))
    running.until(lambda: needed.calls)
    needed.down = False
    calls = len(needed.calls)
    running.until(lambda: len(needed.calls) > calls)
    [connection] = broker.connections()
    connection.lose(next(iter(connection.in_flight)))
    hanging.set()
    running.until(lambda: len(needed.done) == 30)
    running.stop()


def test_the_probe_finds_the_node_that_has_messages(broker: Any, run: Run) -> None:
    for name in ("b:1", "c:1"):
        broker.node(name)
    needed = Dependency()
    needed.down = True
    running = run(needed.handle, max_attempts=0)
    running.until(lambda: len(broker.connections()) == 3)
    broker.node("c:1").publish("orders", numbered(20))
    running.until(lambda: len(needed.calls) > 2)
    needed.down = False
    running.until(lambda: len(needed.done) == 20)
    running.stop()


def test_a_stop_during_a_pause_is_immediate(broker: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "PAUSE_BASE", 60.0)
    monkeypatch.setattr(backoff, "PAUSE_CAP", 60.0)
    needed = Dependency()
    needed.down = True
    running = run(needed.handle, max_attempts=0)
    broker.publish("orders", *numbered(30))
    running.until(lambda: needed.calls)
    began = time.monotonic()
    running.stop()
    assert time.monotonic() - began < 5


def test_a_batch_handler_is_restrained_as_well(broker: Any, run: Run) -> None:
    done: list[bytes] = []
    calls: list[int] = []

    def handle(batch: Any) -> None:
        calls.append(len(batch))
        if len(calls) < 4:
            raise Backoff("the store is down")
        done.extend(message.body for message in batch)

    running = run(handle, batch=10, linger=0.01, max_attempts=0)
    broker.publish("orders", *numbered(60))
    running.until(lambda: len(set(done)) == 60)
    assert calls[1:4] == [1, 1, 1], "a try is one message"
    running.stop()


def test_one_poison_message_in_batches_pauses_no_healthy_handler(broker: Any, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    done: set[bytes] = set()

    def handle(batch: Any) -> None:
        if any(message.body == b"poison" for message in batch):
            raise ValueError("odd")
        done.update(message.body for message in batch)

    running = run(handle, batch=20, linger=0.01, max_attempts=0)
    broker.publish("orders", b"poison", *numbered(200))
    running.until(lambda: len(done) >= 180)
    running.stop()
    assert "gets no messages" not in caplog.text


def test_batches_that_all_fail_pause_their_handler(broker: Any, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    needed = Dependency(ValueError)
    needed.down = True
    running = run(lambda batch: needed.handle(next(iter(batch))), batch=5, linger=0.01, max_attempts=0)
    broker.publish("orders", *numbered(200))
    running.until(lambda: "most of its last messages failed" in caplog.text)
    assert len(needed.calls) >= backoff.FEWEST_FAILURES
    running.stop()


def test_poison_after_a_backoff_is_no_reason_to_wait_longer(broker: Any, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """The handler said that its dependency was down, and now it says something else."""
    needed = Dependency(lambda: Backoff("no database"))
    needed.down = True
    running = run(needed.handle, max_attempts=0)
    broker.publish("orders", *numbered(20))
    running.until(lambda: needed.calls)
    needed.error = lambda: ValueError("odd")
    running.until(lambda: "works again, after" in caplog.text, 5)
    needed.down = False
    running.until(lambda: len(needed.done) == 20)
    running.stop()


def test_it_is_said_when_it_begins_and_when_it_is_over(broker: Any, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    needed = Dependency(lambda: Backoff("no database"))
    needed.down = True
    running = run(needed.handle, max_attempts=0)
    broker.publish("orders", *numbered(30))
    running.until(lambda: "the handler raised Backoff; it gets no messages for" in caplog.text)
    needed.down = False
    running.until(lambda: "handler orders/billing: works again, after" in caplog.text)
    running.stop()
