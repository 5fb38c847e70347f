"""The start of a worker, by its parts: how long it waits for whom, and that what is asked for from elsewhere wakes the hub."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from gevent.event import Event

from framework.engine import dialler as diallers
from framework.engine import supervisor
from framework.engine.supervisor import GLANCE, PATIENCE, Supervisor
from framework.errors import BrokerUnreachable
from tests.engine.conftest import make_spec
from tests.engine.test_diallers import DOWN, Broker, dialler


def bill(message: object) -> None: ...


class Start:
    """A supervisor that waits for two handlers, by a clock that goes on while it waits. ``events``: (seconds, what happens)."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *events: tuple[float, Callable[[Start], object]], limit: float | None = 30.0
    ):
        self.now, self.waits = 1_000.0, list[float]()
        self._events = sorted(((self.now + at, do) for at, do in events), key=lambda one: one[0])
        monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(supervisor, "gevent", SimpleNamespace(sleep=self._pass))
        self.made = Supervisor([], [object()], publish=lambda *_: None, connect_deadline=limit)  # type: ignore[list-item]
        self.first, self.second = (self._handler(name) for name in ("first", "second"))
        self.made._consumers = [self.first, self.second]
        known = {"refusal": None, "shut_out": None, "found_no_node": False, "error": DOWN, "silent": [], "tried": False}
        self.made._diallers = [SimpleNamespace(**known), SimpleNamespace(**known)]  # type: ignore[list-item]

    def _handler(self, name: str) -> Any:
        return SimpleNamespace(spec=SimpleNamespace(name=name), accounts={}, able=False, refusal=None)

    def connect(self, one: Any) -> None:
        one.able, one.accounts = True, {"a:1": None}

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        while self._events and self._events[0][0] <= self.now:
            self._events.pop(0)[1](self)

    def wait(self, seconds: float) -> None:
        """Until something changes."""
        self.waits.append(seconds)
        at = self._events[0][0] if self._events else float("inf")
        self._pass(max(0.0, min(seconds, at - self.now)))

    def run(self) -> float:
        """How many seconds it waits."""
        began = self.now
        self.made._until_ready(self)  # type: ignore[arg-type]
        assert max(self.waits, default=0.0) <= 1.0
        return self.now - began

    def clear(self) -> None: ...


def tried(start: Start) -> None:
    for one in start.made._diallers:
        one.tried = True  # type: ignore[misc]


def both(start: Start) -> None:
    start.connect(start.first)
    start.connect(start.second)


def test_it_has_started_once_all_are_connected_and_every_node_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Start(monkeypatch, (0.0, both), (0.0, tried)).run() <= 2 * GLANCE
    assert Start(monkeypatch, (5.0, both), (5.0, tried)).run() == pytest.approx(5.0, abs=2 * GLANCE)


def test_nodes_that_do_not_answer_are_waited_for_a_moment_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Start(monkeypatch, (5.0, both)).run() == pytest.approx(5.0 + PATIENCE, abs=2 * GLANCE)
    assert Start(monkeypatch, (5.0, both), (5.5, tried)).run() == pytest.approx(5.5, abs=2 * GLANCE)


def test_the_deadline_is_counted_anew_from_each_handler_that_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerUnreachable, match="second: no broker reached within 30 s"):
        Start(monkeypatch, (5.0, lambda start: start.connect(start.first))).run()
    start = Start(monkeypatch, (20.0, lambda start: start.connect(start.first)), (45.0, both), (45.0, tried))
    assert start.run() == pytest.approx(45.0, abs=2 * GLANCE)
    start = Start(monkeypatch)
    with pytest.raises(BrokerUnreachable):
        start.run()
    assert start.now == pytest.approx(1_030.0, abs=2 * GLANCE)
    start = Start(monkeypatch, (20.0, lambda start: start.connect(start.first)))
    with pytest.raises(BrokerUnreachable):
        start.run()
    assert start.now == pytest.approx(1_050.0, abs=2 * GLANCE)


def test_without_a_deadline_it_waits_for_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Start(monkeypatch, (5_000.0, both), (5_000.0, tried), limit=None).run() == pytest.approx(5_000.0, abs=2 * GLANCE)


def test_a_topic_that_no_node_has_yet_is_waited_for_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Start(monkeypatch)
    for one in start.made._diallers:
        one.found_no_node = True  # type: ignore[misc]
    assert start.run() == pytest.approx(30.0, abs=2 * GLANCE)


def test_a_stop_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Start(monkeypatch, (2.0, lambda start: start.made._stop.ask(False)))
    assert start.run() == pytest.approx(2.0, abs=2 * GLANCE)


@pytest.mark.parametrize(
    "ask",
    [
        lambda made, name: made.pause(name),
        lambda made, name: made.resume(name),
        lambda made, name: made.drain(name),
        lambda made, name: made.set_max_in_flight(name, 50),
        lambda made, name: made.set_concurrency(name, 5),
        lambda made, name: made.stop(),
    ],
)
def test_whatever_is_asked_for_from_elsewhere_wakes_the_hub(ask: Callable[[Supervisor, str], None]) -> None:
    spec, woken = make_spec(bill), list[bool]()
    made = Supervisor([spec], [], publish=lambda *_: None)
    ask(made, spec.name)  # before the start there is nothing to wake
    made._wakeup = SimpleNamespace(send=lambda: woken.append(True))
    ask(made, spec.name)
    assert woken == [True]


def test_what_was_asked_for_is_applied_to_every_handler() -> None:
    made, applied, changed = Supervisor([], [], publish=lambda *_: None), list[Any](), Event()
    made._controls = SimpleNamespace(apply=applied.append)  # type: ignore[assignment]
    made._consumers = ["a", "b"]  # type: ignore[list-item]
    made._heed(changed)
    assert applied == ["a", "b"]
    assert changed.is_set()


# --- when a dialler looks for nodes


def looks(one: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What it does from now on: looks, and when it will look again."""
    said: list[str] = []

    def spawn(_look: object) -> Any:
        said.append("look")
        return SimpleNamespace(kill=lambda block: said.append("is waited for" if block else "no more"))

    def spawn_later(seconds: float, _look: object) -> Any:
        said.append(f"in {seconds:g} s")
        return SimpleNamespace(kill=lambda block: said.append("is waited for" if block else "not then"))

    monkeypatch.setattr(diallers, "gevent", SimpleNamespace(spawn=spawn, spawn_later=spawn_later))
    monkeypatch.setattr(diallers.backoff, "spread", lambda seconds: seconds)
    return said


def test_one_look_is_under_way_at_a_time_and_takes_the_place_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    one = dialler(Broker())
    monkeypatch.setattr(one, "_discover", lambda: True)
    said = looks(one, monkeypatch)
    one.start()
    one.look()
    assert said == ["look"]
    one._look()
    one.look()
    assert said == ["look", "in 1 s", "not then", "look"]
    one.stop()
    one.look()
    assert said[4:] == ["no more"]


def test_it_looks_once_more_when_that_was_asked_for_meanwhile_and_not_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    one, found = dialler(Broker()), list[bool]()
    said = looks(one, monkeypatch)

    def discover() -> bool:
        found.append(True)
        if len(found) == 1:
            one.look()
        return True

    monkeypatch.setattr(one, "_discover", discover)
    one.start()
    one._look()
    assert len(found) == 2
    assert said == ["look", "in 1 s"]
    monkeypatch.setattr(one, "_discover", lambda: one.stop() or True)  # type: ignore[func-returns-value]
    one._look()
    assert said == ["look", "in 1 s", "not then"]


def test_a_discovery_that_fails_is_said_now_and_then_and_anew_after_an_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, answers = dialler(Broker()), [False] * 4 + [True] + [False]
    looks(one, monkeypatch)
    monkeypatch.setattr(one, "_discover", lambda: answers.pop(0))
    said = []
    while answers:
        one._look()
        said.append(len(caplog.records))
    assert said == [1, 2, 2, 2, 2, 3]


def test_nodes_that_are_known_for_ever_are_looked_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    one = dialler(Broker(discovers=False))
    said = looks(one, monkeypatch)
    monkeypatch.setattr(diallers, "Tie", lambda *_: None)
    one._look()
    assert said == []
