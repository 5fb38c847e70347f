"""The fixture ``worker`` on the broker in memory: handlers run until nothing is left to do, and what they did can be seen."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType

import gevent
import pytest

import framework
from framework import (
    BadMessage,
    Batch,
    Message,
    Middleware,
    Reject,
    Retry,
    Skip,
    WrongUse,
    handler,
)
from framework.handler import registered
from framework.testing.fixtures import memory_broker, runner
from tests.testing.conftest import Order


def test_it_runs_a_handler_on_what_was_published_and_returns_how_every_message_ended(broker, worker):
    seen = []

    @handler("orders", "billing")
    def bill(order: Order) -> None:
        seen.append(order.id)

    framework.publish("orders", {"id": 7})
    broker.publish("orders", {"id": 8})
    assert worker.run(bill).as_dict() == {"received": 2, "finished": 2, "requeued": 0, "dead": 0, "lease_lost": 0}
    assert seen == [7, 8]


def test_what_a_handler_publishes_is_handled_in_the_same_run_or_waits_to_be_looked_at(broker, worker):
    printed = []

    @handler("orders", "billing")
    def bill(order: Order) -> None:
        framework.publish("invoices", {"order": order.id})
        framework.publish("letters", {"order": order.id}, delay=600)

    @handler("invoices", "printing")
    def print_invoice(invoice: dict) -> None:
        printed.append(invoice)

    framework.publish("orders", {"id": 7})
    assert worker.run(bill, print_invoice).finished == 2
    assert printed == [{"order": 7}]
    assert broker.waiting("letters") == [b'{"order":7}']
    assert worker.ledgers["invoices/printing"].finished == 1


def test_every_channel_of_a_topic_gets_what_was_published_before_the_first_run(broker, worker):
    @handler("orders", "billing")
    def bill(order: Order) -> None: ...

    @handler("orders", "audit")
    def audit(order: Order) -> None: ...

    framework.publish("orders", {"id": 7})
    framework.publish("orders", {"id": 8}, delay=60)
    assert worker.run(bill, audit).finished == 4
    assert {name: ledger.finished for name, ledger in worker.ledgers.items()} == {"orders/billing": 2, "orders/audit": 2}


def test_what_was_given_up_can_be_looked_at(broker, worker):
    @handler("orders", "billing", max_attempts=2)
    def bill(order: Order) -> None:
        raise Reject("no card") if order.id == 7 else Retry("the bank is closed")

    broker.publish_many("orders", [{"id": 7}, {"id": 8}])
    assert worker.run(bill).dead == 2
    seven, eight = broker.dead_letters("orders", "billing")
    assert (seven.body, seven.attempts, seven.reason) == (b'{"id":7}', 1, "Reject: no card")
    assert (eight.body, eight.reason) == (b'{"id":8}', "Retry: the bank is closed")
    assert [letter.id for letter in broker.dead_letters()] == [seven.id, eight.id]
    assert broker.dead_letters("orders", "audit") == []


def test_batches_do_not_wait_for_their_linger(broker, worker):
    sizes = []

    @handler("readings", "totals", batch=50, linger=30, concurrency=1)
    def add_up(batch: Batch) -> None:
        sizes.append(len(batch))

    broker.publish_many("readings", [b"1"] * 120)
    began = time.monotonic()
    worker.run(add_up)
    assert sizes == [50, 50, 20]
    assert time.monotonic() - began < 10


def test_handlers_may_block(broker, worker):
    @handler("orders", "billing", concurrency=20)
    def bill(order: Order) -> None:
        gevent.sleep(0.05)

    broker.publish_many("orders", [{"id": n} for n in range(20)])
    assert worker.run(bill).finished == 20


def test_whatever_its_slots_a_handler_runs_in_the_tests_thread(broker, worker):
    threads = set()

    @handler("orders", "billing", slots="thread")
    def bill(order: Order) -> None:
        threads.add(threading.get_ident())

    framework.publish("orders", {"id": 7})
    worker.run(bill)
    assert threads == {threading.get_ident()}


def test_a_module_or_its_name_stands_for_what_it_declares_and_nothing_for_all(broker, worker, monkeypatch):
    module = ModuleType("shop_of_this_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    code = "from framework import handler\n@handler('orders', 'billing')\ndef bill(order: dict): ...\n"
    exec(compile(code, "shop.py", "exec"), module.__dict__)
    for what in ([module], [module.__name__], [module.bill], []):
        framework.publish("orders", {"id": 7})
        assert worker.run(*what).finished == 1


def test_what_is_no_handler_is_refused(broker, worker):
    with pytest.raises(WrongUse, match="<built-in function print> is no handler, and no module that declares one"):
        worker.run(print)
    with pytest.raises(WrongUse, match=r"<module 'time' .*is no handler"):
        worker.run(time)


def test_many_runs_are_quick(broker, worker):
    @handler("orders", "billing")
    def bill(message: Message) -> None: ...

    worker.run(bill)
    began = time.process_time(), time.monotonic()
    for _ in range(20):
        framework.publish("orders", {"id": 7})
        assert worker.run(bill).finished == 1
    assert time.process_time() - began[0] < 2.0  # 0.1 s each at the very most; about 0.005 on a quiet machine


def test_handlers_that_a_test_declares_are_forgotten_with_it():
    with memory_broker() as broker, runner(broker):

        @handler("orders", "only.here")
        def bill(message: Message) -> None: ...

        assert "orders/only.here" in {spec.name for spec in registered()}
    assert "orders/only.here" not in {spec.name for spec in registered()}


def test_publish_goes_to_the_broker_of_the_test_and_of_no_other():
    with memory_broker() as first:
        framework.publish("orders", "1")
    with memory_broker() as second:
        framework.publish("orders", "2")
        assert second.waiting("orders") == [b"2"]
    assert first.waiting("orders") == [b"1"]
    assert framework.publisher._default is None  # back to $BROKER_URL


# -- as another broker


def test_a_delay_of_three_days_fails_where_the_broker_would_refuse_it(broker):
    broker.publish("orders", {"id": 7}, delay=259_200)
    broker.like("nsq")
    with pytest.raises(WrongUse, match="delay=259200: this broker takes a delay of 0 to 3600 seconds"):
        framework.publish("orders", {"id": 7}, delay=259_200)
    with pytest.raises(WrongUse, match="this broker knows no priorities"):
        framework.publish("orders", {"id": 7}, priority=1)
    broker.like("nsq://nsqd?max_req_timeout=10m")
    with pytest.raises(WrongUse, match="0 to 600 seconds"):
        framework.publish("orders", {"id": 7}, delay=601)
    assert len(broker.waiting("orders")) == 1


def test_a_retry_of_three_days_is_kept_in_hops_there_in_no_time(broker, worker):
    calls = []

    @handler("orders", "billing", max_attempts=2)
    def bill(message: Message) -> None:
        calls.append((broker.clock.now(), message.attempts))
        if len(calls) == 1:
            raise Retry("the bank is closed", delay=259_200)

    broker.like("nsq").publish("orders", {"id": 7})
    ledger = worker.run(bill)
    assert ledger.finished == 1
    assert [attempts for _, attempts in calls] == [1, 2]
    assert round(calls[1][0] - calls[0][0], 6) >= 259_200, "but for what 72 sums are rounded by"
    assert ledger.requeued == 72, "an hour each"


def test_bodies_names_and_handlers_are_those_of_that_broker(broker, worker):
    @handler("orders", "billing", timeout=901)
    def slow(message: Message) -> None: ...

    @handler("orders", "audit")
    def audit(message: Message) -> None: ...

    broker.like("beanstalkd")
    with pytest.raises(BadMessage, match="over the 65535 that the broker takes"):
        broker.publish("orders", b"x" * 65_536)
    with pytest.raises(WrongUse, match="topic"):
        broker.publish("-orders", b"x")
    with pytest.raises(WrongUse, match="'orders'"):
        worker.run(slow, audit)
    worker.run(slow)
    broker.like("nsq").publish("orders", b"x" * 65_536)
    with pytest.raises(WrongUse, match="timeout=901 is longer than"):
        worker.run(slow)
    with pytest.raises(BadMessage, match="over the 1048576"):
        broker.publish("orders", b"x" * 1_048_577)


def test_what_is_no_broker_is_refused(broker):
    with pytest.raises(WrongUse, match="the scheme must be one of"):
        broker.like("carrier-pigeon")
    with pytest.raises(WrongUse, match="name the broker that the handlers are for"):
        broker.like("memory")


class Translating(Middleware):
    """What a missing key means in this app."""

    def around(self, job, call):
        try:
            call()
        except KeyError as error:
            raise Skip("no such order") from error
        except LookupError as error:
            raise RuntimeError("out of stock") from error


def test_middleware_is_around_the_calls_and_an_error_is_what_it_makes_of_one(broker, worker):
    @handler("orders", "billing", middleware=[Translating()])
    def bill(order: Order) -> None:
        raise {7: KeyError, 8: IndexError}[order.id](order.id)

    framework.publish("orders", {"id": 7})
    assert worker.run(bill).finished == 1
    assert not [error for error in worker.errors if not isinstance(error, Skip)]
    framework.publish("orders", {"id": 8})
    with pytest.raises(RuntimeError, match="out of stock") as caught:
        worker.run(bill)
    shown = [entry.name for entry in caught.traceback if not entry.ishidden(caught)]
    assert shown[:2] == [sys._getframe().f_code.co_name, "around"]


def test_each_run_starts_and_stops_middleware_and_has_it_hear_of_outcomes(broker, worker):
    notes = []

    class Noting(Middleware):
        def start(self):
            notes.append("start")

        def after(self, message, outcome):
            notes.append(outcome)

        def stop(self):
            notes.append("stop")

    @handler("orders", "billing", middleware=[Noting()], slots="thread")
    def bill(message: Message) -> None:
        if message.attempts == 1:
            raise Retry(delay=3600)

    framework.publish("orders", {"id": 7})
    worker.run(bill)
    assert notes == ["start", "requeued", "finished", "stop"]
    worker.run(bill)
    assert notes[4:] == ["start", "stop"]
