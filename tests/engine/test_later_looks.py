"""When it is looked for what waits elsewhere, on which nodes, and how something is stored there: without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.event import Event

from framework.engine import later_dialler
from framework.engine.later_dialler import LaterDialler, Topics, Waits, carry_headers, known_delays
from framework.errors import BrokerUnreachable, MessageRefused, PublishError, SomeUnreachable, TlsFailed, WrongUse
from framework.middleware.later import ANY, LEAST_HOP
from tests.engine.test_diallers import DOWN, LATER, Broker, Ways, consumer


def later(broker: Broker, handlers: int = 1) -> LaterDialler:
    return LaterDialler(consumer(), broker, Ways(), Event(), Topics(broker, handlers))  # type: ignore[arg-type]


def some_down(answers: Any, *down: str) -> SomeUnreachable:
    return SomeUnreachable("some are down", answers=answers, down=frozenset(down))


def test_the_delays_that_all_brokers_keep() -> None:
    assert known_delays([]) == ANY
    few, many = (
        Broker(max_requeue=most, max_defer=defer, delay_levels=levels) for most, defer, levels in ((5, 9, ()), (7, 8, (1.0, 2.0)))
    )
    assert known_delays([few, many]) == (5, 8, (1.0, 2.0))  # type: ignore[list-item]
    assert carry_headers([Broker(), Broker()])  # type: ignore[list-item]
    assert not carry_headers([Broker(), Broker(headers=False)])  # type: ignore[list-item]


def test_few_handlers_ask_for_their_own_topic_and_many_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(later_dialler, "time", SimpleNamespace(monotonic=lambda: now[0]))
    broker = Broker()
    assert Topics(broker, later_dialler.CROWD).may_have("other")  # type: ignore[arg-type]
    assert broker.asked == []
    topics = Topics(broker, later_dialler.CROWD + 1)  # type: ignore[arg-type]
    assert [topics.may_have(LATER), topics.may_have("other")] == [True, False]
    now[0] += later_dialler.FRESH
    topics.may_have(LATER)
    assert broker.asked == ["topics"]
    now[0] += 0.1
    broker.names = some_down({"other"}, "b")
    assert [topics.may_have(LATER), topics.may_have("other"), topics.down] == [False, True, {"b"}]
    now[0] += later_dialler.FRESH + 1
    broker.names = DOWN
    for _ in range(2):
        with pytest.raises(BrokerUnreachable):
            topics.may_have("other")
    assert len(broker.asked) == 3
    now[0] += later_dialler.FRESH + 1
    broker.names = {LATER}
    assert topics.may_have(LATER)
    assert not topics.down


def test_it_dials_the_nodes_where_something_waits_and_of_those_that_do_not_say_the_ones_that_had_something() -> None:
    broker = Broker()
    one = later(broker)
    assert one._find() == {"a"}
    assert broker.asked == [f"backlog {LATER} billing"]
    assert broker.ensured == []
    one._known = {"a", "c"}
    broker.waits = some_down({"b": 1}, "c", "d")
    assert one._find() == {"b", "c"}
    broker.waits = DOWN
    assert one._find() == {"a", "c"}
    one._known = None
    assert one._find() == set()


def test_where_something_was_stored_just_now_every_node_that_does_not_say_is_dialled() -> None:
    broker = Broker()
    broker.waits = some_down({"b": 1}, "c", "d")
    one = later(broker)
    one.stored()
    assert one._find() == {"b", "c", "d"}
    assert broker.ensured == [(LATER, ["billing"])]
    assert one._find() == {"b"}  # the next look is as any other
    broker.waits = DOWN
    one.stored()
    assert one._find() == set()
    assert one._pause() == later_dialler.LOOK_WHEN_BLIND
    broker.waits = {"a": 1}
    assert one._find() == {"a"}
    assert len(broker.ensured) == 3
    assert one._pause() == later_dialler.POLL


def test_while_it_is_blind_and_nothing_was_stored_it_is_in_no_hurry() -> None:
    broker = Broker()
    broker.waits = DOWN
    one = later(broker)
    one._find()
    assert one._pause() == later_dialler.POLL


def test_one_of_many_handlers_that_has_nothing_there_keeps_what_it_had_on_nodes_that_are_down() -> None:
    broker = Broker()
    one = later(broker, later_dialler.CROWD + 1)
    broker.names = some_down(set(), "b")
    one._known = {"a", "b"}
    assert one._find() == {"b"}
    assert broker.asked == ["topics"]
    one._known = None
    assert one._find() == set()


def test_before_something_is_stored_it_is_kept_for_its_channel_and_what_waits_there_must_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(later_dialler, "time", SimpleNamespace(monotonic=lambda: now[0]))
    broker = Broker()
    one = later(broker)
    one.check()
    one.check()
    assert broker.ensured == [(LATER, ["billing"])]
    assert broker.asked == []
    broker.waits = DOWN
    one._find()
    now[0] += later_dialler.LOOK_WHEN_BLIND
    for _ in range(2):
        with pytest.raises(BrokerUnreachable, match="down"):
            one.check()
    assert len(broker.asked) == 1
    now[0] += 0.1
    with pytest.raises(BrokerUnreachable, match="down"):
        one.check()
    assert len(broker.asked) == 2
    broker.waits = {}
    now[0] += later_dialler.LOOK_WHEN_BLIND + 0.1
    one.check()
    assert len(broker.ensured) == 1


def test_what_cannot_be_kept_for_its_channel_on_any_node_is_not_stored_there() -> None:
    broker = Broker()
    broker.unsure = some_down({}, "b")
    later(broker).check()
    broker.unsure = DOWN
    one = later(broker)
    for _ in range(2):
        with pytest.raises(BrokerUnreachable, match="down"):
            one.check()
    assert len(broker.ensured) == 3


def test_a_node_that_rests_is_not_dialled_until_its_time_is_over_and_its_end_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(later_dialler, "time", SimpleNamespace(monotonic=lambda: now[0]))
    broker = Broker()
    broker.waits = {"a": 1, "b": 1}
    one = later(broker)
    one._leave = lambda _: None  # type: ignore[method-assign]
    one._known = one._find()
    connection: Any = SimpleNamespace(node="a")
    one.rest(connection)
    assert not one.wants("a")
    assert one.wants("b")
    one.failed("a", None, 1)
    assert not one._changed.is_set()
    one.failed("a", DOWN, 1)
    assert one._changed.is_set()
    assert one._find() == {"b"}
    now[0] += later_dialler.REST - 0.1
    assert one._find() == {"b"}
    now[0] += 0.1
    assert one._find() == {"a", "b"}
    one._changed.clear()
    one.failed("b", None, 1)
    assert one._changed.is_set()
    first = later(broker)
    first._leave = lambda _: None  # type: ignore[method-assign]
    first.rest(connection)
    assert first._known == set()


@pytest.mark.parametrize(
    ("node", "broker", "keeps"),
    [
        (None, LEAST_HOP, True),
        (None, LEAST_HOP / 2, False),
        (LEAST_HOP, 0.0, True),
        (LEAST_HOP / 2, 9.0, False),
        (0.0, 9.0, False),
    ],
)
def test_a_node_keeps_delays_when_it_says_so_or_else_when_its_broker_does(node: Any, broker: float, keeps: bool) -> None:
    connection: Any = SimpleNamespace(limits=SimpleNamespace(max_requeue=node))
    assert later(Broker(max_requeue=broker)).keeps_delays(connection) is keeps


# --- storing what waits


class Storing:
    """Where messages wait; ``errors`` are raised by as many publishes, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self.now = 1_000.0
        self.published: list[tuple[Any, ...]] = []
        self.naps: list[float] = []
        self._errors = list(errors)
        monkeypatch.setattr(later_dialler, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(later_dialler, "gevent", SimpleNamespace(sleep=self._sleep, spawn=gevent.spawn))
        self.broker = Broker()
        self.waits = Waits([self.broker], [Ways()], self._publish)  # type: ignore[arg-type, list-item]
        self.waits.prepare([consumer()], Event())
        (self.dialler,) = self.waits._diallers[LATER]

    def _publish(self, *arguments: Any, **more: Any) -> None:
        self.published.append((*arguments, more))
        if self._errors:
            raise self._errors.pop(0)

    def _sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


def test_what_is_stored_is_said_to_its_dialler(monkeypatch: pytest.MonkeyPatch) -> None:
    storing = Storing(monkeypatch)
    storing.waits.defer(LATER, b"x", 5.0)
    storing.waits.defer(LATER, b"y", 6.0, {"a": "b"})
    assert storing.published == [(LATER, b"x", {"delay": 5.0}), (LATER, b"y", {"delay": 6.0, "headers": {"a": "b"}})]
    assert storing.dialler._stored
    assert storing.broker.ensured == [(LATER, ["billing"])]
    storing.waits.defer("another", b"z", 1.0)  # whose handler is elsewhere
    assert len(storing.published) == 3


def test_what_cannot_be_stored_for_a_moment_is_tried_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = PublishError("full", stored=False)
    storing = Storing(monkeypatch, refused, DOWN, PublishError("no answer", stored=None))
    storing.waits.defer(LATER, b"x", 5.0)
    assert len(storing.published) == 4
    assert storing.naps == [later_dialler.LOOK_WHEN_BLIND] * 3
    storing = Storing(monkeypatch, *[refused] * 100)
    with pytest.raises(PublishError):
        storing.waits.defer(LATER, b"x", 5.0)
    assert len(storing.naps) == later_dialler.PATIENCE / later_dialler.LOOK_WHEN_BLIND
    assert not storing.dialler._stored


@pytest.mark.parametrize(
    "error", [TlsFailed("secret"), MessageRefused("too big"), PublishError("there twice", stored=True), WrongUse("odd")]
)
def test_what_will_never_be_stored_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    storing = Storing(monkeypatch, error)
    with pytest.raises(type(error)):
        storing.waits.defer(LATER, b"x", 5.0)
    assert storing.naps == []


def test_a_worker_that_ends_tries_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    storing = Storing(monkeypatch, DOWN)
    storing.dialler.stop()
    with pytest.raises(BrokerUnreachable):
        storing.waits.defer(LATER, b"x", 5.0)
    assert storing.naps == []


def test_all_diallers_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    storing = Storing(monkeypatch)
    looks: list[bool] = []
    storing.dialler.look = lambda: looks.append(True)  # type: ignore[method-assign]
    assert storing.waits.start() == [storing.dialler]
    assert looks == [True]
    storing.dialler.stored()  # from now on it is looked for at once
    assert looks == [True, True]
