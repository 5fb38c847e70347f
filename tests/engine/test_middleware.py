"""An app's own middleware in a worker, in each kind of slot: where it runs, and that no message is lost or doubled by it."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import gevent
import pytest

from framework import BadHandler, Batch, Message, Middleware, Reject, Retry, Skip
from framework.handler import _registry, registered
from tests.engine.conftest import make_spec

KINDS = ("greenlet", "thread", "process")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> Callable[[str], list[list[str]]]:
    """The lines of the journal that start with a word, without it."""
    path = tmp_path / "journal"
    monkeypatch.setenv("JOURNAL", str(path))
    monkeypatch.setenv("KIND", kind)
    monkeypatch.setenv("WORKER", str(os.getpid()))
    monkeypatch.setattr("framework.engine.backoff.RETRY_BASE", 0.01)

    def of(word: str) -> list[list[str]]:
        written = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1:] for line in written if line.split()[0] == word]

    return of


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, lines: object) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "modules"))
    monkeypatch.setattr(_registry, "entries", {})
    package = importlib.reload(importlib.import_module("around_jobs"))
    module = importlib.reload(importlib.import_module("around_jobs.handlers"))
    assert module.Inner is package.Inner
    return module


@pytest.fixture
def work(run: Callable[..., Any], jobs: ModuleType) -> Callable[..., Any]:
    """A worker for one of the handlers as it was declared."""

    def start(name: str = "bill", **options: Any) -> Any:
        spec = next(spec for spec in registered() if spec.function is getattr(jobs, name))
        return run(spec, **options)

    return start


def test_it_runs_where_the_handler_runs_and_what_it_sets_is_seen_there(broker, work, lines):
    worker = work()
    broker.publish("orders", b"fine")
    worker.until(lambda: broker.finished)
    [[outer]], [[handler, tenant]], [[out]] = lines("outer"), lines("handler"), lines("out")
    assert outer == handler == out
    assert tenant == "acme"
    worker.stop()


@pytest.mark.parametrize("body", [b"raise", b"forget", b"swallow", b"commit"])
def test_a_message_whose_middleware_fails_comes_again_and_is_handled(broker, work, lines, body):
    worker = work()
    broker.publish("orders", body, *[b"fine"] * 10)
    worker.until(lambda: len(broker.finished) == 11)
    assert worker.stop() == {"received": 12, "finished": 11, "requeued": 1, "dead": 0, "lease_lost": 0}
    assert len(lines("handler")) == (12 if body in (b"swallow", b"commit") else 11)


def test_a_message_that_a_middleware_skips_is_finished_without_its_handler(broker, work, lines):
    worker = work()
    broker.publish("orders", b"skip this", b"fine", b"skip that")
    worker.until(lambda: len(broker.finished) == 3)
    assert worker.stop() == {"received": 3, "finished": 3, "requeued": 0, "dead": 0, "lease_lost": 0}
    assert len(lines("handler")) == 1


def test_a_message_that_a_middleware_rejects_is_a_dead_letter_with_the_reason(broker, work, lines):
    letters = []
    worker = work(dead=lambda topic, body: letters.append(body))
    broker.publish("orders", b"reject")
    worker.until(lambda: letters)
    assert worker.stop()["dead"] == 1
    assert b"not in this shop" in letters[0]
    assert not lines("handler")


def test_a_batch_reaches_its_handler_without_what_a_middleware_skips(broker, work, lines):
    worker = work("bill_many")
    broker.publish("orders", b"one", b"skip_two", b"three")
    worker.until(lambda: len(broker.finished) == 3)
    assert worker.stop()["finished"] == 3
    assert sorted(chain.from_iterable(lines("batch"))) == ["one", "three"]
    assert lines("outer")


@pytest.mark.parametrize("kind", ["process"], indirect=True)
def test_a_slot_process_without_the_middleware_of_the_worker_is_refused(broker, run, work, jobs):
    """Such as one that is declared under a condition that only the worker fulfils."""
    spec = next(spec for spec in registered() if spec.function is jobs.bill)
    worker = run(replace(spec, middleware=(*spec.middleware, jobs.Inner())))
    with pytest.raises(Exception, match=r"its middleware is .*Inner'\] when imported, and .* in the worker"):
        worker.until(lambda: False)


def processes(lines: list[list[str]]) -> list[int]:
    return [int(line[0].partition("/")[0]) for line in lines]


def test_it_is_started_before_the_first_call_and_stopped_after_the_last_in_each_process_that_has_calls(broker, work, lines, kind):
    worker = work()
    worker.until(lambda: len(lines("start")) == (3 if kind == "process" else 1))  # it has two slots
    started = processes(lines("start"))
    worker.until(lambda: worker.supervisor.ready)
    broker.publish("orders", *[b"fine"] * 4)
    worker.until(lambda: len(broker.finished) == 4)
    assert len(started) == len(set(started)) == len(lines("start"))
    assert {os.getpid(), *processes(lines("handler"))} <= set(started)
    assert not lines("stop")
    worker.stop()
    assert sorted(processes(lines("stop"))) == sorted(started)


def test_a_worker_whose_middleware_does_not_start_is_refused_before_it_subscribes(broker, work, monkeypatch):
    monkeypatch.setenv("UNFIT", "worker")
    worker = work()
    with pytest.raises(BadHandler, match=r"^middleware around_jobs.Outer does not start: OSError: no database$"):
        worker.greenlet.get(timeout=10)
    assert not [one for node in broker.nodes.values() for one in node.connections]


@pytest.mark.parametrize("kind", ["process"], indirect=True)
def test_a_worker_whose_middleware_does_not_start_in_a_slot_process_is_refused(broker, work, monkeypatch):
    monkeypatch.setenv("UNFIT", "elsewhere")
    worker = work()
    with pytest.raises(BadHandler, match=r"a slot process cannot start: middleware around_jobs.Outer does not start: OSError"):
        worker.greenlet.get(timeout=10)


class Lived(Middleware):
    """Started and stopped as its functions say."""

    def __init__(self, name: str, notes: list[str], **actions: Callable[[], object]) -> None:
        self.name, self.notes, self.actions = name, notes, actions

    def start(self) -> None:
        self.do("start")

    def stop(self) -> None:
        self.do("stop")

    def do(self, what: str) -> None:
        self.notes.append(f"{what} {self.name}")
        self.actions.get(what, bool)()


def refuse() -> None:
    raise SystemExit("no such server")


def test_the_order_of_starting_is_that_of_declaring_and_of_stopping_the_reverse_and_shared_ones_have_one_life(broker, run):
    notes: list[str] = []
    a, b, c = (Lived(name, notes) for name in "abc")
    specs = [make_spec(print, middleware=(a, b)), make_spec(print, channel="audit", middleware=(a, c))]
    worker = run(*specs)
    worker.until(lambda: worker.supervisor.ready)
    worker.stop()
    assert notes == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]


def test_what_had_started_before_one_that_does_not_is_stopped(broker, run):
    notes: list[str] = []
    some = (Lived("a", notes), Lived("b", notes, start=refuse), Lived("c", notes))
    worker = run(print, middleware=some)
    with pytest.raises(BadHandler, match="Lived does not start: SystemExit: no such server"):
        worker.greenlet.get(timeout=10)
    assert notes == ["start a", "start b", "stop a"]


def test_one_that_fails_to_stop_is_logged_and_the_others_are_stopped(broker, run, caplog):
    notes: list[str] = []
    worker = run(print, middleware=(Lived("a", notes), Lived("b", notes, stop=refuse)))
    worker.until(lambda: worker.supervisor.ready)
    worker.stop()
    assert notes[2:] == ["stop b", "stop a"]
    assert "Lived does not stop as it should" in caplog.text


def test_a_stop_is_heeded_while_middleware_starts(broker, run):
    notes: list[str] = []
    some = (Lived("a", notes), Lived("b", notes, start=lambda: gevent.sleep(60)), Lived("c", notes))
    worker = run(print, middleware=some)
    worker.until(lambda: "start b" in notes)
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < 5
    assert notes == ["start a", "start b", "stop a"]


@pytest.mark.parametrize("now", [False, True])
def test_middleware_that_does_not_stop_keeps_no_worker_from_its_end(broker, run, caplog, now):
    notes: list[str] = []
    some = (Lived("a", notes), Lived("b", notes, stop=lambda: gevent.sleep(60)))
    worker = run(print, middleware=some, supervisor={"drain": 60.0 if now else 0.1})
    worker.until(lambda: worker.supervisor.ready)
    began = time.monotonic()
    worker.stop(now=now)
    assert time.monotonic() - began < 5
    assert "Lived: its stop() was given up, and those of 1 others" in caplog.text


def test_stopping_has_the_time_to_drain(broker, run):
    notes: list[str] = []
    worker = run(print, middleware=(Lived("a", notes, stop=lambda: (gevent.sleep(1.5), notes.append("done"))),))
    worker.until(lambda: worker.supervisor.ready)
    worker.stop()
    assert notes[-1] == "done"


# -- after an outcome


class Heard(Middleware):
    """Notes how each message ended; ``does(message)`` comes first."""

    def __init__(self, notes: list[tuple[object, ...]], does: Callable[[Message], object] = bool, name: str = "") -> None:
        self.notes, self.does, self.name = notes, does, name

    def after(self, message: Message, outcome: str) -> None:
        self.does(message)
        name = (self.name,) if self.name else ()
        self.notes.append((*name, message.topic, message.body, message.attempts, outcome, message.settled))


def obey(message: Message) -> None:
    if message.attempts == 1 and message.body == b"retry":
        raise Retry(delay=0)
    if message.body == b"reject":
        raise Reject("no")
    if message.body == b"skip":
        raise Skip("done")


def test_it_hears_once_of_each_delivery_how_it_ended_when_it_is_settled(broker, run):
    notes: list[tuple[object, ...]] = []
    worker = run(obey, middleware=(Heard(notes),), concurrency=1)
    broker.publish("orders", b"fine", b"retry", b"reject", b"skip")
    worker.until(lambda: len(notes) == 5)
    ledger = worker.stop()
    assert sorted(notes) == [
        ("orders", b"fine", 1, "finished", True),
        ("orders", b"reject", 1, "dead", True),
        ("orders", b"retry", 1, "requeued", True),
        ("orders", b"retry", 2, "finished", True),
        ("orders", b"skip", 1, "finished", True),
    ]
    assert {key: ledger[key] for key in ("finished", "requeued", "dead")} == {"finished": 3, "requeued": 1, "dead": 1}


def test_it_hears_of_a_message_that_is_given_up_without_a_call(broker, run):
    notes: list[tuple[object, ...]] = []
    worker = run(raising, middleware=(Heard(notes),), max_attempts=1)
    next(iter(broker.nodes.values()))._put("orders", (b"0123456789abcdef", 1, b"x"))  # its worker was killed
    worker.until(lambda: notes)
    worker.stop()
    assert notes == [("orders", b"x", 2, "dead", True)]


def raising(message: Message) -> None:
    raise AssertionError("it has no attempts left")


def test_of_a_batch_it_hears_once_for_each_message_when_all_are_settled(broker, run):
    notes: list[tuple[object, ...]] = []
    unsettled: list[Message] = []

    def handle(batch: Batch) -> None:
        unsettled.extend(batch)
        for message in batch:
            if message.body == b"bad":
                batch.fail(message, Reject("bad"))

    def look(_: Message) -> None:
        unsettled[:] = [message for message in unsettled if not message.settled]

    worker = run(handle, middleware=(Heard(notes, look),), batch=3, linger=5)
    broker.publish("orders", b"one", b"bad", b"two")
    worker.until(lambda: len(notes) == 3)
    assert not unsettled
    worker.stop()
    assert sorted(note[1:4:2] for note in notes) == [(b"bad", "dead"), (b"one", "finished"), (b"two", "finished")]


def test_the_last_of_several_hears_first_and_one_that_fails_changes_nothing(broker, run, caplog):
    notes: list[tuple[object, ...]] = []
    some = (
        Heard(notes, name="outer"),
        Heard(notes, lambda message: 1 / 0),
        Heard(notes, lambda message: refuse()),
        Heard(notes, name="inner"),
    )
    worker = run(obey, middleware=some)
    broker.publish("orders", b"fine")
    worker.until(lambda: len(notes) == 2)
    assert worker.stop() == {"received": 1, "finished": 1, "requeued": 0, "dead": 0, "lease_lost": 0}
    assert [note[0] for note in notes] == ["inner", "outer"]
    assert "ZeroDivisionError" in caplog.text
    assert "SystemExit" in caplog.text


@pytest.mark.parametrize("fails", [False, True])
def test_it_hears_that_a_lease_was_lost(broker, run, fails):
    notes: list[tuple[object, ...]] = []

    def handle(message: Message) -> None:
        if message.attempts == 1:
            [connection] = [one for node in broker.nodes.values() for one in node.connections if one.in_flight]
            connection.close()
            gevent.sleep(0.01)
            if fails:
                raise ValueError("too late")

    worker = run(handle, middleware=(Heard(notes),))
    broker.publish("orders", b"x")
    worker.until(lambda: len(notes) == 2)
    worker.stop()
    assert [note[3] for note in notes] == ["lease_lost", "finished"]


def test_it_is_held_to_the_time_limit_and_the_message_stays_finished(broker, run, caplog):
    notes: list[tuple[object, ...]] = []
    worker = run(obey, middleware=(Heard(notes, lambda message: gevent.sleep(60)),), timeout=0.2, concurrency=1)
    broker.publish("orders", b"fine")
    worker.until(lambda: "fails after message" in caplog.text)
    assert "HandlerTimeout" in caplog.text
    assert worker.stop()["finished"] == 1


def test_a_worker_that_stops_lets_it_end_within_the_time_to_drain(broker, run):
    notes: list[tuple[object, ...]] = []
    begun = []
    hears = Heard(notes, lambda message: (begun.append(message), gevent.sleep(0.3)))
    stopped: list[str] = []
    worker = run(obey, middleware=(hears, Lived("x", stopped, stop=lambda: stopped.append(f"after {len(notes)}"))))
    broker.publish("orders", b"fine")
    worker.until(lambda: begun)
    worker.stop()
    assert len(notes) == 1
    assert stopped[-1] == "after 1"


@pytest.mark.parametrize("kind", ["thread", "process"], indirect=True)
def test_it_hears_in_the_worker_of_calls_elsewhere(broker, run, work, jobs, kind):
    notes: list[tuple[object, ...]] = []
    where: list[str] = []
    around_jobs = importlib.import_module("around_jobs")
    around_jobs.heard = lambda message, outcome: (notes.append((message.body, outcome)), where.append(around_jobs.here()))
    worker = work()
    broker.publish("orders", b"fine", b"reject")
    worker.until(lambda: len(notes) == 2)
    worker.stop()
    assert sorted(notes) == [(b"fine", "finished"), (b"reject", "dead")]
    assert set(where) == {around_jobs.here()}
