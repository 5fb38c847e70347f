"""The fixture ``worker``: errors, retries, faults, and what never comes to an end."""

from __future__ import annotations

import sys
import time

import gevent
import pytest

import framework
from framework import (
    Backoff,
    Message,
    Retry,
    UndecodablePayload,
    handler,
)
from tests.testing.conftest import Order


def test_an_error_of_a_handler_is_the_tests_at_its_first_occurrence(broker, worker):
    calls = []

    @handler("orders", "billing", concurrency=1)
    def bill(order: Order) -> None:
        calls.append(order.id)
        raise ZeroDivisionError("the total")

    broker.publish_many("orders", [{"id": 7}, {"id": 8}])
    with pytest.raises(ZeroDivisionError, match="the total") as caught:
        worker.run(bill)
    assert calls == [7]
    assert worker.errors == [caught.value]
    assert len(broker.waiting("orders", "billing")) == 2
    shown = [entry.name for entry in caught.traceback if not entry.ishidden(caught)]
    assert shown == [sys._getframe().f_code.co_name, "bill"]


def test_a_body_that_the_handler_cannot_take_is_an_error_too(broker, worker):
    @handler("orders", "billing")
    def bill(order: Order) -> None: ...

    framework.publish("orders", {"number": 7})
    with pytest.raises(UndecodablePayload, match="does not decode to Order"):
        worker.run(bill)


def test_on_request_what_fails_is_retried_as_in_production_without_waiting(broker, worker):
    @handler("orders", "billing", max_attempts=9)
    def bill(message: Message) -> None:
        if message.attempts < 9:  # exponential: minutes, in real time
            raise ConnectionError("the bank is closed")

    framework.publish("orders", {"id": 7})
    began = time.monotonic()
    ledger = worker.run(bill, raise_errors=False)
    assert (ledger.finished, ledger.requeued) == (1, 8)
    assert [type(error) for error in worker.errors] == [ConnectionError] * 8
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("delay", [3600, 30 * 86_400])
def test_a_retry_is_no_error_and_its_delay_passes_at_once(broker, worker, delay):
    @handler("orders", "billing")
    def bill(message: Message) -> None:
        if message.attempts == 1:
            raise Retry("later", delay=delay)

    framework.publish("orders", {"id": 7})
    began = broker.clock.now()
    assert worker.run(bill).requeued == 1
    assert delay <= broker.clock.now() - began < delay + 60


def test_without_advance_what_is_due_later_is_left(broker, worker):
    attempts = []

    @handler("orders", "billing")
    def bill(message: Message) -> None:
        attempts.append(message.attempts)
        if message.attempts == 1:
            raise Retry("later", delay=60)

    framework.publish("orders", {"id": 7})
    worker.run(bill, advance=False)
    assert attempts == [1]
    broker.clock.advance(59)
    assert worker.run(bill, advance=False).received == 0
    broker.clock.advance(1.1)
    assert worker.run(bill, advance=False).finished == 1
    assert attempts == [1, 2]


def test_backing_off_is_a_handlers_own_word_and_fails_no_test(broker, worker):
    tries = []

    @handler("orders", "billing")
    def bill(message: Message) -> None:
        tries.append(message.attempts)
        if len(tries) == 1:
            raise Backoff("the bank is down", delay=1)

    framework.publish("orders", {"id": 7})
    worker.run(bill)
    assert len(tries) == 2
    assert [type(error) for error in worker.errors] == [Backoff]


def test_a_retry_that_does_not_count_takes_no_time_and_no_attempts(broker, worker):
    attempts = []

    @handler("orders", "billing", max_attempts=2)
    def bill(message: Message) -> None:
        attempts.append(message.attempts)
        if len(attempts) < 20:
            raise Retry("the bank is closed", delay=600, count=False)

    began = broker.clock.now()
    broker.publish("orders", {"id": 7})
    ledger = worker.run(bill)
    assert attempts == [1] * 20
    assert (ledger.finished, ledger.requeued, ledger.dead) == (1, 19, 0)
    assert broker.clock.now() - began >= 19 * 600
    assert broker.waiting("orders.billing.later") == []


def test_without_advance_it_waits_for_its_time(broker, worker):
    calls = []

    @handler("orders", "billing", max_attempts=1)
    def bill(message: Message) -> None:
        calls.append(message.body)
        if len(calls) == 1:
            raise Retry("the bank is closed", delay=600, count=False)

    broker.publish("orders", {"id": 7})
    worker.run(bill, advance=False)
    broker.clock.advance(599)
    assert worker.run(bill, advance=False).finished == 0
    broker.clock.advance(1.1)
    assert worker.run(bill, advance=False).finished == 1
    assert len(calls) == 2


def test_a_lost_finish_a_broken_connection_and_a_lost_lease_cost_a_delivery(broker, worker):
    attempts = []

    @handler("orders", "billing")
    def bill(message: Message) -> None:
        attempts.append(message.attempts)
        if message.attempts == 2:
            broker.drop()
            gevent.sleep(0.01)
        if message.attempts == 3:
            broker.expire()

    broker.lose_finishes(1)
    framework.publish("orders", {"id": 7})
    ledger = worker.run(bill)
    assert attempts == [1, 2, 3, 4]
    assert (ledger.finished, ledger.lease_lost) == (2, 2)


def test_handlers_that_never_come_to_an_end_are_stopped_and_said(broker, worker):
    @handler("orders", "billing", max_attempts=0)
    def bill(message: Message) -> None:
        raise Retry("for ever")

    framework.publish("orders", {"id": 7})
    with pytest.raises(TimeoutError, match=r"the handlers still had work after 0.2 s: [01] messages to handle now, [01] later"):
        worker.run(bill, timeout=0.2)


def test_a_handler_that_hangs_is_stopped_at_the_end_of_the_time(broker, worker):
    @handler("orders", "billing")
    def bill(message: Message) -> None:
        gevent.sleep(60)

    framework.publish("orders", {"id": 7})
    with pytest.raises(TimeoutError, match=r"still had work after 0.2 s: 1 messages to handle now"):
        worker.run(bill, timeout=0.2)
    assert broker.waiting("orders", "billing") == [b'{"id":7}']


def test_a_broker_that_is_down_is_said(broker, worker):
    @handler("orders", "billing")
    def bill(message: Message) -> None: ...

    broker.stop()
    with pytest.raises((framework.BrokerUnreachable, TimeoutError)):
        worker.run(bill, timeout=0.3)


def test_an_item_of_a_batch_that_the_handler_cannot_take_is_an_error_too(broker, worker):
    billed = []

    @handler("orders", "billing", batch=10)
    def bill(orders: list[Order]) -> None:
        billed.extend(orders)

    broker.publish_many("orders", [{"id": 7}, {"number": 8}])
    with pytest.raises(UndecodablePayload, match="does not decode to Order"):
        worker.run(bill)
    assert worker.run(bill, raise_errors=False) is not None
    assert Order(7) in billed
