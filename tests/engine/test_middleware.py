"""An app's own middleware in a worker, in each kind of slot: where it runs, and that no message is lost or doubled by it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from framework.handler import registered

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
    monkeypatch.setattr("framework.engine.backoff.RETRY_BASE", 0.01)

    def of(word: str) -> list[list[str]]:
        written = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1:] for line in written if line.split()[0] == word]

    return of


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, lines: object) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "modules"))
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
