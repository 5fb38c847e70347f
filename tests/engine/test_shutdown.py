"""The steps in which a handler stops, by themselves: what is taken, what is given back, and how far it is."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from framework.engine.in_flight import InFlight
from framework.engine.shutdown import Shutdown
from framework.engine.unstarted import Unstarted
from framework.engine.waiting import Waiting
from framework.handler import make_spec
from framework.message import Message


class Line:
    """A connection."""

    node, topic = "a:1", "orders"

    def __init__(self, said: list[Any], *, away: str = "", unsent: int = 0, goodbye: float = 2.0) -> None:
        self.said = said
        self.in_flight: dict[Message, float] = {}
        self.limits = SimpleNamespace(goodbye=goodbye)
        self.away = away
        self._unsent = unsent

    def grant(self, number: int) -> None:
        self.said.append(("grant", number))

    def drain(self) -> None:
        self.said.append("drain")

    def close(self) -> None:
        self.said.append("close connection")

    def unsent(self) -> int:
        return self._unsent

    def requeue(self, message: Message, delay: float) -> None:
        self.said.append(("requeue", message.body, delay))
        self.in_flight.pop(message, None)


class HandingLine(Line):
    """Of a broker that delivers nothing twice: it hands on what another worker takes."""

    def hand_on(self, message: Message) -> bool:
        return message.body == b"taken"


class Part:
    """Whatever else stops: it notes what it was told."""

    def __init__(self, said: list[Any], name: str) -> None:
        self._said, self._name = said, name
        self.halted = self.stopped = self.telling = False
        self.ended = True
        self.calls: dict[Message, float] = {}

    def __getattr__(self, verb: str) -> Any:
        return lambda *arguments: self._said.append((f"{verb} {self._name}", *arguments))

    def messages(self) -> dict[Message, float]:
        return self.calls


class Case:
    def __init__(self, *lines: Line, remote: bool = False) -> None:
        self.said: list[Any] = []
        for line in lines:
            line.said = self.said
        self.queue: deque[Message] = deque()
        self.waiting = Waiting(self.queue, Unstarted())
        self.slots, self.grants = Part(self.said, "slots"), Part(self.said, "grants")
        self.settlement, self.running = Part(self.said, "settlement"), Part(self.said, "running")
        self.remote = Part(self.said, "remote") if remote else None
        self.accounts = {line: SimpleNamespace(drained=False) for line in lines}
        self.flow: Any = SimpleNamespace(grants=self.grants, accounts=self.accounts)

        def bill(message: Message) -> None: ...

        parts: dict[str, Any] = {"running": self.running, "slots": self.slots, "remote": self.remote}
        in_flight = InFlight(make_spec(bill, "orders", "billing"), self.flow, self.waiting, self.slots, self.remote)  # type: ignore[arg-type]
        self.shutdown = Shutdown(self.flow, in_flight, self.waiting, self.settlement, **parts)  # type: ignore[arg-type]


def message(line: Line, body: bytes = b"x") -> Message:
    one = Message(b"%d" % len(line.in_flight), 0, 1, body, line)
    line.in_flight[one] = 0.0
    return one


def test_what_waited_is_given_back_when_nothing_can_come_any_more_and_what_comes_later_at_once() -> None:
    line = Line([])
    case = Case(line)
    case.queue.append(message(line, b"waited"))
    assert not case.shutdown.begun
    case.shutdown.halt()
    assert case.slots.halted
    case.shutdown.drain()
    assert case.shutdown.begun
    assert case.grants.stopped
    assert case.said == [("grant", 0), "drain"]
    assert not case.queue
    case.shutdown.decline([message(line, b"came meanwhile")])
    assert len(case.said) == 2
    case.shutdown.give_back_unstarted()
    assert case.said[2:] == [("requeue", b"waited", 0.0), ("requeue", b"came meanwhile", 0.0)]
    case.shutdown.give_back_unstarted()
    assert len(case.said) == 4
    case.shutdown.decline([message(line, b"late")])
    assert case.said[4:] == [("requeue", b"late", 0.0)]


def test_what_nobody_else_takes_of_a_broker_that_delivers_nothing_twice_is_started_after_all() -> None:
    line = HandingLine([])
    case = Case(line)
    case.queue += [message(line, b"taken"), message(line, b"left")]
    case.shutdown.halt()
    case.shutdown.drain()
    case.shutdown.give_back_unstarted()
    assert [one.body for one in case.queue] == [b"left"]
    assert not case.slots.halted
    assert case.said[2:] == [("kick slots",)]


def test_where_all_of_it_is_taken_nothing_more_is_started() -> None:
    line = HandingLine([])
    case = Case(line)
    case.queue += [message(line, b"taken")]
    case.shutdown.halt()
    case.shutdown.drain()
    case.shutdown.give_back_unstarted()
    assert case.slots.halted
    assert len(case.said) == 2


def test_in_the_end_all_that_is_in_flight_is_given_back_and_handlers_are_told() -> None:
    one, other = Line([]), Line([])
    case = Case(one, other)
    message(one, b"runs")
    case.queue.append(message(other, b"waits"))
    case.shutdown.abandon()
    assert case.slots.halted
    assert not case.queue
    assert case.said == [("requeue", b"runs", 0.0), ("requeue", b"waits", 0.0), ("abandon slots", "the worker stops")]


@pytest.mark.parametrize("remote", [True, False])
def test_it_closes_what_it_has(remote: bool) -> None:
    case = Case(Line([]), Line([]), remote=remote)
    case.shutdown.close()
    middle: list[Any] = [("close remote",)] if remote else []
    assert case.said == [("close grants",), ("close slots",), *middle, "close connection", "close connection"]


def test_a_forked_child_starts_nothing_and_gives_nothing_back() -> None:
    line = Line([])
    case = Case(line)
    case.queue.append(message(line))
    case.shutdown.forget()
    assert case.shutdown.begun
    assert case.slots.halted
    assert not case.queue
    assert case.said == [("stop grants",)]


def test_it_is_deaf_when_each_connection_has_said_so_and_quiet_when_nothing_is_in_flight_unsent_or_told_of() -> None:
    one, other = Line([], unsent=1), Line([])
    case = Case(one, other)
    running = message(other)
    case.accounts[one].drained = True
    assert (case.shutdown.deaf, case.shutdown.handling, case.shutdown.quiet) == (False, True, False)
    case.accounts[other].drained = True
    assert (case.shutdown.deaf, case.shutdown.quiet) == (True, False)
    del other.in_flight[running]
    assert (case.shutdown.handling, case.shutdown.quiet) == (False, False)
    one._unsent = 0
    assert case.shutdown.quiet
    case.settlement.telling = True
    assert (case.shutdown.handling, case.shutdown.quiet) == (True, False)
    case.settlement.telling = False
    case.accounts[one].drained = False
    assert not case.shutdown.quiet


def test_it_says_which_of_its_brokers_are_away_where_something_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.engine.shutdown.away", lambda line: line.away)
    lines = [
        Line([], away=away, unsent=unsent) for away, unsent in (("a is down", 1), ("b is down", 0), ("", 1), ("d is down", 2))
    ]
    assert Case(*lines).shutdown.unheard == "a is down; d is down"
    assert Case().shutdown.unheard == ""


def test_a_goodbye_takes_as_long_as_the_slowest_broker_may_take() -> None:
    assert Case(Line([], goodbye=1.0), Line([], goodbye=5.0), Line([])).shutdown.goodbye == 5.0
    assert Case().shutdown.goodbye == 0.0


def test_it_has_ended_when_its_connections_have_and_what_ran_elsewhere() -> None:
    assert not Case(Line([])).shutdown.ended
    assert not Case(Line([]), remote=True).shutdown.ended
    assert Case().shutdown.ended
    case = Case(remote=True)
    assert case.shutdown.ended
    assert case.remote is not None
    case.remote.ended = False
    assert not case.shutdown.ended


def test_what_runs_is_kept_while_it_stops() -> None:
    line = Line([])
    case = Case(line)
    runs, waits = message(line), message(line)
    case.running.calls[runs] = 1.0
    assert runs in case.shutdown.kept()
    assert waits not in case.shutdown.kept()
