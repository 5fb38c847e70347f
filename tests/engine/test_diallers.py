"""What a dialler makes of the answers of discovery and of its ties."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gevent.event import Event

from framework.engine import dialler as diallers
from framework.engine.dialler import Dialler
from framework.errors import BadHandler, BrokerRefuses, BrokerUnreachable, TlsFailed, WrongUse
from framework.handler import make_spec

SPEC = make_spec(lambda message: None, "orders", "billing")
LATER = "orders.billing.later"
DOWN = BrokerUnreachable("down")


class Broker:
    """A transport whose answers are set: values, or errors to be raised."""

    def __init__(self, **capabilities: Any) -> None:
        self.capabilities = SimpleNamespace(**{"discovers": True, "auto_create": True, "headers": True} | capabilities)
        self.found: Any = {"a", "b"}
        self.waits: Any = {"a": 1}
        self.names: Any = {LATER}
        self.ensured: list[tuple[str, list[str]]] = []
        self.unsure: Exception | None = None
        self.asked: list[str] = []

    def discover(self, topic: str, channel: str) -> set[str]:
        return set(self._answer(f"discover {topic} {channel}", self.found))

    def backlog(self, topic: str, channel: str) -> dict[str, int]:
        return dict(self._answer(f"backlog {topic} {channel}", self.waits))

    def topics(self) -> set[str]:
        return set(self._answer("topics", self.names))

    def ensure(self, topic: str, channels: list[str]) -> None:
        self.ensured.append((topic, channels))
        if self.unsure is not None:
            raise self.unsure

    def _answer(self, what: str, answer: Any) -> Any:
        self.asked.append(what)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Ties:
    """In the place of ``Tie``: it dials nothing."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.stopped: list[str] = []

    def __call__(self, _owner: Any, node: str, _way: Any) -> Any:
        self.made.append(node)
        return SimpleNamespace(stop=lambda: self.stopped.append(node))


@pytest.fixture
def ties(monkeypatch: pytest.MonkeyPatch) -> Ties:
    ties = Ties()
    monkeypatch.setattr(diallers, "Tie", ties)
    return ties


class Ways(dict[str, Any]):
    def __missing__(self, node: str) -> Any:
        return SimpleNamespace(error=None)


def consumer() -> Any:
    nothing = lambda *_: None  # noqa: E731
    return SimpleNamespace(spec=SPEC, accounts={}, tally=None, settled=nothing, lost=nothing, drained=nothing, closed=nothing)


def dialler(broker: Broker, poll: float = 15.0, ways: Any = None) -> Dialler:
    return Dialler(consumer(), broker, Ways() if ways is None else ways, poll, Event())  # type: ignore[arg-type]


def test_each_node_that_is_found_is_dialled_once_and_only_an_answer_takes_one_away(ties: Ties) -> None:
    broker = Broker()
    one = dialler(broker)
    assert (one.tried, one.found_no_node, one.wanted, one.silent) == (False, False, 0, [])
    assert one._discover()
    assert sorted(ties.made) == ["a", "b"]
    assert (one.tried, one.wanted, one.silent) == (False, 2, ["a", "b"])
    one.connected("a")
    one.failed("b", DOWN, 1)
    assert (one.tried, one.silent, one.error) == (True, [], DOWN)
    broker.found = DOWN
    assert not one._discover()
    assert (one.wants("a"), one.wants("b"), one.wants("c"), one.wanted) == (True, True, False, 2)
    broker.found = {"a", "c"}
    assert one._discover()
    assert (one.wants("a"), one.wants("b"), one.wants("c")) == (True, False, True)
    assert sorted(ties.made) == ["a", "b", "c"]
    one.let_go("c")
    assert one.silent == []
    assert one._discover()
    assert sorted(ties.made) == ["a", "b", "c", "c"]
    broker.found = set()
    one._discover()
    assert one.found_no_node
    one.stop()
    assert sorted(ties.stopped) == ["a", "b", "c"]
    assert not one.wants("a")


@pytest.mark.usefixtures("ties")
def test_the_error_of_another_handlers_dial_is_told_where_there_is_none_of_its_own() -> None:
    ways = Ways(a=SimpleNamespace(error=None), b=SimpleNamespace(error=DOWN))
    one = dialler(Broker(), ways=ways)
    assert one.error is None
    one._discover()
    assert one.error is DOWN
    own = BrokerUnreachable("mine")
    one.failed("a", own, 1)
    one.failed("a", None, 1)
    assert one.error is own


@pytest.mark.usefixtures("ties")
def test_it_is_shut_out_when_every_node_rejects_it_and_none_ever_took_it() -> None:
    no = TlsFailed("wrong secret")
    one = dialler(Broker())
    assert one.shut_out is None
    one._discover()
    one.failed("a", no, 1)
    assert one.shut_out is None
    one.failed("b", no, 1)
    assert "no broker accepts it (" in str(one.shut_out)
    one.failed("b", DOWN, 2)
    assert one.shut_out is None
    one.failed("b", no, 3)
    assert one.shut_out is not None
    one.let_go("b")
    assert one.shut_out is None
    one.failed("b", no, 3)
    one.connected("a")
    assert one.shut_out is None


@pytest.mark.usefixtures("ties")
def test_who_is_rejected_where_nodes_are_asked_for_is_shut_out_until_there_is_an_answer() -> None:
    broker = Broker()
    broker.found = BrokerRefuses("wrong secret")
    one = dialler(broker)
    assert not one._discover()
    assert "no broker accepts it (wrong secret)" in str(one.shut_out)
    assert one.refusal is None
    assert one._changed.is_set()
    broker.found = {"a"}
    assert one._discover()
    assert one.shut_out is None


@pytest.mark.usefixtures("ties")
def test_wrong_use_refuses_at_the_start_and_is_an_error_among_others_later() -> None:
    broker, wrong = Broker(), WrongUse("another server")
    broker.found = wrong
    one = dialler(broker)
    assert not one._discover()
    assert one.refusal is wrong
    assert one._changed.is_set()
    one = dialler(broker)
    one.connected("a")
    one._changed.clear()
    assert not one._discover()
    assert (one.refusal, one.error, one._changed.is_set()) == (None, wrong, False)
    one.unfit(refusal := BadHandler("unfit"))
    assert one.refusal is refusal


@pytest.mark.usefixtures("ties")
def test_a_bug_in_discovery_is_an_error_as_any_other() -> None:
    broker = Broker()
    broker.found = ZeroDivisionError()
    one = dialler(broker)
    assert not one._discover()
    assert one.error is broker.found


@pytest.mark.usefixtures("ties")
def test_it_looks_again_soon_while_no_node_is_known_or_one_has_come_or_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(diallers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    broker = Broker()
    one = dialler(broker, poll=15.0)
    assert one._pause() == 1.0
    assert dialler(broker, poll=0.5)._pause() == 0.5
    one._discover()
    assert one._pause() == 1.0
    now[0] += 50
    one._discover()
    assert one._pause() == 5.0
    now[0] += 1_000
    assert one._pause() == 15.0
    broker.found = {"a"}
    one._discover()
    assert one._pause() == 1.0


@pytest.mark.usefixtures("ties")
@pytest.mark.parametrize("discovers", [True, False])
def test_nodes_of_urls_are_asked_for_once(discovers: bool) -> None:
    broker = Broker(discovers=discovers)
    broker.found = DOWN
    one = dialler(broker)
    one._discover()
    assert not one._settled
    broker.found = {"a"}
    one._discover()
    assert one._settled is not discovers
    looks: list[bool] = []
    one.look = lambda: looks.append(True)  # type: ignore[method-assign]
    one.lost("a")
    assert bool(looks) is discovers


@pytest.mark.usefixtures("ties")
def test_what_does_not_come_to_be_by_itself_is_made_first_and_again_after_a_node_was_lost() -> None:
    broker = Broker(auto_create=False, discovers=False)
    one = dialler(broker)
    one._discover()
    made = [("orders.billing.dead", []), ("orders", ["billing"])]
    assert broker.ensured == made
    one._discover()
    assert broker.ensured == made
    one.lost("a")
    one._discover()
    assert broker.ensured == made * 2
    broker = Broker()
    dialler(broker)._discover()
    assert broker.ensured == []
