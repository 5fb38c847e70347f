"""The same promises in each kind of slot: the same jobs, in greenlets, threads and processes, on a broker in memory."""

from __future__ import annotations

import gc
import importlib
import logging
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import gevent
import pytest

from framework.payload import decoder
from framework.transports.contract import Limits

KINDS = ("greenlet", "thread", "process")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


class Journal:
    """What the handlers wrote down, wherever they ran."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def count(self, start: str) -> int:
        return sum(line.startswith(start) for line in self.lines)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> Journal:
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    monkeypatch.setenv("KIND", kind)
    monkeypatch.setattr("framework.engine.backoff.RETRY_BASE", 0.01)
    return Journal(tmp_path / "journal")


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "modules"))
    return importlib.import_module("slot_jobs")


@pytest.fixture
def work(run: Callable[..., Any], jobs: ModuleType, kind: str, journal: Journal) -> Callable[..., Any]:
    """A worker whose handler obeys, in slots of each kind."""

    def start(**options: Any) -> Any:
        return run(jobs.obey_batch if "batch" in options else jobs.obey, slots=kind, **{"concurrency": 2, **options})

    return start


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Path]:
    """The file that opens the gates; open at the end, so that no thread is left behind."""
    path = tmp_path / "opened"
    yield path
    path.touch()
    gc.collect()


def prefetch(worker: Any) -> None:
    """Let messages wait for a slot, as if the handlers had been quick until now."""
    worker.until(lambda: worker.supervisor.ready)
    worker.supervisor._consumers[0].flow.credit._concurrency = 50


def test_every_message_is_handled_once_and_the_books_add_up(broker, work, journal):
    worker = work(concurrency=3)
    broker.publish("orders", *[b"fine %d" % i for i in range(300)])
    worker.until(lambda: len(broker.finished) == 300, seconds=30)
    assert sorted(line for line in journal.lines if line.startswith("end")) == sorted(f"end 1 fine {i}" for i in range(300))
    assert worker.stop() == {"received": 300, "finished": 300, "requeued": 0, "dead": 0, "lease_lost": 0}


def test_as_many_run_at_once_as_there_are_slots_and_no_more(broker, work, journal, opened):
    worker = work(concurrency=3)
    broker.publish("orders", *[b"gate %s" % bytes(opened)] * 8)
    worker.until(lambda: journal.count("start") == 3)
    opened.touch()
    worker.until(lambda: len(broker.finished) == 8)
    running = list(accumulate({"start": 1, "end": -1}[line.split()[0]] for line in journal.lines))
    assert max(running) == 3
    worker.stop()


@pytest.mark.parametrize("body", [b"retry 0.01", b"fail 1", b"leave"])
def test_a_message_that_fails_comes_again(broker, work, body):
    worker = work()
    broker.publish("orders", body, *[b"fine"] * 20)
    worker.until(lambda: len(broker.finished) == 21)
    assert worker.stop() == {"received": 22, "finished": 21, "requeued": 1, "dead": 0, "lease_lost": 0}


def test_a_rejected_message_is_a_dead_letter_with_the_reason(broker, work):
    letters = []
    worker = work(dead=lambda topic, body: letters.append((topic, body)))
    broker.publish("orders", b"reject no such customer")
    worker.until(lambda: letters)
    topic, letter = letters[0]
    assert topic == "orders.billing.dead"
    assert b"Reject: no such customer" in letter
    assert letter.endswith(b"\nreject no such customer")
    assert worker.stop() == {"received": 1, "finished": 0, "requeued": 0, "dead": 1, "lease_lost": 0}


def test_a_failure_is_logged_with_where_it_happened(broker, work, caplog):
    worker = work()
    broker.publish("orders", b"fail 1")
    worker.until(lambda: broker.finished)
    assert "failed at attempt 1: ValueError: failed at attempt 1" in caplog.text
    assert "slot_jobs.py" in caplog.text
    assert 'raise ValueError(f"failed at attempt' in caplog.text
    worker.stop()


def test_a_call_that_is_over_its_time_is_ended_or_told_and_its_message_comes_again(broker, work, journal, kind):
    worker = work(timeout=0.3)
    broker.publish("orders", b"heed 0.3")
    worker.until(lambda: broker.finished)
    assert journal.lines[:2] == ["start 1 heed 0.3", "left True True False"]
    worker.until(lambda: journal.count("end 2") == 1)
    if kind == "greenlet":
        assert journal.count("interrupted it has run longer than its timeout of 0.3 s") == 1
    if kind == "thread":
        worker.until(lambda: "lost True" in journal.lines)
    assert worker.stop() == {"received": 2, "finished": 1, "requeued": 1, "dead": 0, "lease_lost": 0}


def test_a_call_that_is_over_its_time_is_a_dead_letter_where_the_handler_says_so(broker, work, journal, opened):
    letters = []
    worker = work(timeout=0.3, on_timeout="reject", dead=lambda topic, body: letters.append(body))
    broker.publish("orders", b"gate %s" % bytes(opened))
    worker.until(lambda: letters)
    assert b"HandlerTimeout: it has run longer than its timeout of 0.3 s" in letters[0]
    opened.touch()
    assert worker.stop() == {"received": 1, "finished": 0, "requeued": 0, "dead": 1, "lease_lost": 0}


def test_a_message_knows_when_its_lease_is_lost(broker, work, journal):
    worker = work()
    broker.publish("orders", b"heed 60")
    worker.until(lambda: journal.count("left True True False"))
    connection = broker.connections()[0]
    connection.lose(next(iter(connection.in_flight)))
    worker.until(lambda: "lost False" in journal.lines)
    worker.until(lambda: len(broker.finished) == 1)
    assert worker.stop() == {"received": 2, "finished": 1, "requeued": 0, "dead": 0, "lease_lost": 1}


def test_what_a_call_leaves_in_a_context_variable_no_other_sees(broker, work, journal):
    worker = work(concurrency=1)
    broker.publish("orders", b"whoami alice", b"whoami bob")
    worker.until(lambda: len(broker.finished) == 2)
    assert journal.count("user nobody") == 2
    worker.stop()


def test_a_spurious_wake_up_ends_no_call(broker, work, journal, opened):
    worker = work(concurrency=1)
    broker.publish("orders", b"gate %s" % bytes(opened))
    worker.until(lambda: journal.count("start") == 1)
    consumer = worker.supervisor._consumers[0]
    if consumer._remote is not None:
        (slot,) = consumer._slots.busy()
        gevent.get_hub().loop.run_callback(slot.greenlet.switch)
    gevent.sleep(0.1)
    assert broker.finished == []
    opened.touch()
    worker.until(lambda: len(broker.finished) == 1)
    assert journal.count("end") == 1
    assert worker.stop() == {"received": 1, "finished": 1, "requeued": 0, "dead": 0, "lease_lost": 0}


def test_leases_are_touched_while_a_call_runs_and_while_a_message_waits(broker, work, journal, opened):
    broker.nodes["a:1"].limits = Limits(lease=3.0, max_lease=60.0, max_grant=2500)
    worker = work(concurrency=1, max_in_flight=2, timeout=20)
    prefetch(worker)
    broker.publish("orders", *[b"gate %s" % bytes(opened)] * 2)
    worker.until(lambda: broker.connections() and broker.connections()[0].touches >= 4)
    assert len(broker.connections()[0].in_flight) == 2
    assert journal.count("start") == 1
    opened.touch()
    worker.until(lambda: len(broker.finished) == 2)
    assert worker.stop()["lease_lost"] == 0


def test_a_handler_may_touch_its_message_itself(broker, work):
    worker = work()
    broker.publish("orders", b"touch")
    worker.until(lambda: broker.finished)
    assert broker.connections()[0].touches == 1
    worker.stop()


def test_what_runs_at_a_stop_may_finish(broker, work, journal, opened):
    worker = work(concurrency=2)
    broker.publish("orders", *[b"gate %s" % bytes(opened)] * 6)
    worker.until(lambda: journal.count("start") == 2)
    worker.supervisor.stop()
    worker.until(lambda: not broker.connections() or broker.connections()[0].draining)
    opened.touch()
    ledger = worker.end()
    assert ledger["finished"] == 2
    assert ledger["requeued"] == ledger["received"] - 2


@pytest.mark.parametrize("how", ["drain", "second signal"])
def test_what_hangs_for_ever_does_not_hold_the_stop(broker, work, journal, opened, how):
    worker = work(concurrency=1, max_in_flight=1, supervisor={"drain": 0.3 if how == "drain" else 60.0})
    broker.publish("orders", b"gate %s" % bytes(opened))
    worker.until(lambda: journal.count("start") == 1)
    began = time.monotonic()
    worker.supervisor.stop()
    if how == "second signal":
        worker.supervisor.stop()
    ledger = worker.end()
    assert time.monotonic() - began < 20
    assert ledger == {"received": 1, "finished": 0, "requeued": 1, "dead": 0, "lease_lost": 0}


def test_a_batch_has_an_outcome_for_each_of_its_messages(broker, work, journal):
    letters = []
    worker = work(batch=4, linger=0.1, concurrency=1, dead=lambda topic, body: letters.append(body))
    broker.publish("orders", b"fine", b"reject", b"retry", b"fine")
    worker.until(lambda: len(broker.finished) == 4)
    assert letters[0].endswith(b"\nreject")
    assert journal.lines == ["batch 4", "batch 1"]
    assert worker.stop() == {"received": 5, "finished": 3, "requeued": 1, "dead": 1, "lease_lost": 0}


def test_a_batch_that_fails_comes_again_whole(broker, work, journal):
    worker = work(batch=3, linger=0.1, concurrency=1)
    broker.publish("orders", b"fine", b"fail", b"fine")
    worker.until(lambda: len(broker.finished) == 3)
    assert worker.stop() == {"received": 6, "finished": 3, "requeued": 3, "dead": 0, "lease_lost": 0}


def test_a_typed_batch_is_decoded_item_by_item_and_keeps_what_was_said_when_it_raises(broker, run, jobs, kind, journal):
    letters = []
    worker = run(
        jobs.add_up,
        decode=decoder(jobs.Order),
        slots=kind,
        concurrency=1,
        batch=4,
        linger=0.1,
        dead=lambda topic, body: letters.append(body.partition(b"\n")[2]),
    )
    broker.publish("orders", b'{"id":1}', b"no order", b'{"id":-2}', b'{"id":3}')
    worker.until(lambda: len(broker.finished) == 4)
    assert sorted(letters) == [b"no order", b'{"id":-2}']
    assert (journal.lines[0], journal.count("orders [1, 3]")) == ("orders [-2, 1, 3]", 1)
    assert worker.stop() == {"received": 6, "finished": 2, "requeued": 2, "dead": 2, "lease_lost": 0}


def test_what_waited_so_long_that_its_lease_is_over_is_not_started(broker, work, journal, opened, caplog):
    broker.nodes["a:1"].limits = Limits(lease=0.6, max_lease=1.2, max_grant=2500)
    worker = work(concurrency=1, max_in_flight=2, timeout=0.9)
    prefetch(worker)
    with caplog.at_level(logging.WARNING):
        broker.publish("orders", b"once %s" % bytes(opened), b"fine")
        worker.until(lambda: "waited too long for a free slot" in caplog.text)
    assert "start 1 fine" not in journal.lines
    opened.touch()
    worker.until(lambda: len(broker.finished) == 2)
    assert journal.count("start 1 fine") == 1, "the delivery that only waited is no attempt"
    ledger = worker.stop()
    assert ledger["lease_lost"] == 0
    assert ledger["received"] == journal.count("start") + 1


def test_what_outlived_its_lease_while_a_handler_blocked_the_hub_is_not_started(broker, run):
    broker.nodes["a:1"].limits = Limits(lease=0.5, max_lease=60.0, max_grant=2500)
    calls = []

    def function(message):
        calls.append((message.body, message.attempts))
        if message.body == b"blocks" and message.attempts == 1:
            worker.until(lambda: len(broker.connections()[0].in_flight) == 3)
            time.sleep(1.0)  # pytest is not patched

    worker = run(function, concurrency=1, max_in_flight=3)
    prefetch(worker)
    broker.publish("orders", b"blocks", b"waits", b"waits")
    worker.until(lambda: len(broker.finished) == 3)
    assert calls == [(b"blocks", 1), (b"waits", 1), (b"waits", 1)], "the deliveries that only waited are no attempts"
    assert worker.stop() == {"received": 5, "finished": 3, "requeued": 2, "dead": 0, "lease_lost": 0}
