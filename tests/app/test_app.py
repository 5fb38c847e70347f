"""What an App says and does of itself, with nothing under it; and options of handlers that may just be had."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework import Batch
from framework.app import App, _say_when_ready, _stop_without
from framework.engine.ledger import Ledger
from framework.errors import BadHandler, BadSetting
from framework.handler import declared_in, make_spec
from framework.message import Message
from framework.settings import Settings


def nothing(message: Message) -> None:
    """What is decorated."""


def listed(messages: list[str]) -> None:
    """What is decorated."""


def batched(messages: Batch[str]) -> None:
    """What is decorated."""


@pytest.fixture
def app() -> App:
    return App([make_spec(nothing, "orders", "billing", {})], Settings(drain=7.0))


def running(app: App, **more: Any) -> list[tuple[Any, ...]]:
    """Let it seem to run; what it is told is in the list."""
    said: list[tuple[Any, ...]] = []

    def tell(name: str) -> Any:
        return lambda *what: said.append((name, *what))

    calls = {name: tell(name) for name in ("stop", "pause", "resume", "set_max_in_flight")}
    app._supervisor = SimpleNamespace(**calls, **more)  # type: ignore[assignment]
    return said


@pytest.mark.parametrize(("left", "said"), [(math.inf, 7.0), (8.0, 7.0), (3.0, 3.0)])
def test_what_is_left_of_the_time_to_drain_is_no_more_than_all_of_it(left: float, said: float, app: App) -> None:
    assert app.time_left == 7.0
    running(app, time_left=left)
    assert app.time_left == said


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("stopping", [True, False])
def test_it_is_ready_while_its_handlers_are_and_it_does_not_stop(ready: bool, stopping: bool, app: App) -> None:
    assert (app.ready, app.supervisor) == (False, None)
    running(app, ready=ready, stopping=stopping)
    assert app.ready is (ready and not stopping)
    assert app.supervisor is app._supervisor


def test_what_it_is_told_goes_to_what_runs(app: App) -> None:
    app.stop()
    assert app._stopping
    said = running(app)
    app.stop()
    app.stop(now=True)
    app.pause("orders/billing")
    app.resume("orders/billing")
    app.set_max_in_flight("orders/billing", 3)
    assert said == [
        ("stop", False), ("stop", True), ("pause", "orders/billing"), ("resume", "orders/billing"),
        ("set_max_in_flight", "orders/billing", 3),
    ]  # fmt: skip


def test_an_nsqd_that_ends_stops_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.app._LOOK_SECONDS", 0.001)
    nsqd: Any = SimpleNamespace(ended=False)
    stops: list[bool] = []
    supervisor: Any = SimpleNamespace(stop=lambda *, now: stops.append(now))
    looking = gevent.spawn(_stop_without, nsqd, supervisor)
    gevent.sleep(0.005)
    assert stops == []
    nsqd.ended = True
    looking.get(timeout=5.0)
    assert stops == [True]


def test_that_it_is_ready_is_said_when_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    supervisor: Any = SimpleNamespace(ready=False)
    saying = gevent.spawn(_say_when_ready, supervisor)
    gevent.sleep(0.005)
    assert caplog.messages == []
    supervisor.ready = True
    saying.get(timeout=5.0)
    assert caplog.messages == ["ready"]


def test_a_ledger_is_written_as_lines(tmp_path: Path) -> None:
    file = tmp_path / "ledger.json"
    app = App([make_spec(nothing, "orders", "billing", {})], Settings(ledger=file))
    supervisor: Any = SimpleNamespace(ledgers={"orders/billing": Ledger(received=1)}, published={})
    app._write_ledgers(supervisor)
    assert file.read_text().endswith("}\n")
    assert json.loads(file.read_text())["orders/billing"]["received"] == 1


def test_what_tracing_needs_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "framework.otel" or name.startswith("framework.otel.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("framework.otel", raising=False)
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(BadSetting, match=r"pip install 'nsq-workers\[otel\]'"):
        App([make_spec(nothing, "orders", "billing", {})], Settings(otel=True))


# --- options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["concurrency", "batch"])
def test_what_is_just_reached_may_be_given(name: str) -> None:
    function = listed if name == "batch" else nothing
    spec = make_spec(function, "orders", "billing", {name: 20, "max_in_flight": 20})
    assert (getattr(spec, name), spec.max_in_flight) == (20, 20)
    with pytest.raises(BadHandler, match=f"{name}=21 can never be reached with max_in_flight=20"):
        make_spec(function, "orders", "billing", {name: 21, "max_in_flight": 20})


def test_a_wait_for_a_batch_needs_one() -> None:
    assert make_spec(listed, "orders", "billing", {"batch": 5, "linger": 1.0}).linger == 1.0
    with pytest.raises(BadHandler, match="linger= is the wait for a batch to fill"):
        make_spec(nothing, "orders", "billing", {"linger": 1.0})


def test_a_batch_comes_as_what_it_was_asked_for() -> None:
    assert make_spec(listed, "orders", "billing", {"batch": 5}).as_list
    assert not make_spec(batched, "orders", "billing", {"batch": 5}).as_list
    assert not make_spec(nothing, "orders", "billing", {}).as_list


@pytest.mark.parametrize(("cores", "processes"), [(6, 6), (None, 1)])
def test_there_are_as_many_process_slots_as_cores_where_their_number_is_known(
    cores: int | None, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 7} if pid == 0 else set())
    assert make_spec(nothing, "orders", "billing", {"slots": "process"}).concurrency == 3
    assert make_spec(nothing, "orders", "billing", {"slots": "process", "concurrency": 9}).concurrency == 9
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert make_spec(nothing, "orders", "billing", {"slots": "process"}).concurrency == processes


def test_a_handler_is_of_the_module_that_declared_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(nothing, "orders", "billing", {})
    assert declared_in(spec) == __name__
    handlers: Any = sys.modules["framework.handler"]
    entry = SimpleNamespace(spec=spec, declared_in="elsewhere")
    monkeypatch.setitem(handlers._registry.entries, spec.name, entry)
    assert declared_in(spec) == "elsewhere"
    assert declared_in(make_spec(listed, "orders", "billing", {"batch": 5})) == __name__, "another of the same name"
