"""How nodes that come, go, freeze and cut connections are dialled: soon, by one for all, and without hammering. In memory."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gevent
import pytest

from framework.engine import dialler, tie, ways
from framework.engine.supervisor import GLANCE, Supervisor
from framework.errors import BadHandler, BrokerError, BrokerUnreachable
from framework.transports.contract import Limits
from tests.engine.conftest import FakeBroker

Run = Callable[..., Any]


def handlers(spec: Callable[..., Any], count: int) -> list[Any]:
    return [spec(lambda message: None, topic=f"orders{number}") for number in range(count)]


def test_while_a_node_is_away_one_handler_dials_it_for_all_and_once_it_is_back_all_are_connected(
    broker: FakeBroker, run: Run, spec: Any
) -> None:
    worker = run(*handlers(spec, 100))
    worker.until(lambda: len(broker.connections()) == 100)
    node = broker.nodes["a:1"]
    node.kill()
    on_the_way = time.monotonic() + 20
    while (dials := _dials_in(broker, 0.3)) > 8 * 0.3:
        assert time.monotonic() < on_the_way, f"{dials} dials in 0.3 s"
    dials, began = broker.dials, time.monotonic()
    gevent.sleep(1.0)
    assert broker.dials - dials <= 8 * (time.monotonic() - began), "at most one dial each quarter of a second, and a little"
    node.up = True
    worker.until(lambda: len(broker.connections()) == 100, seconds=5)


def _dials_in(broker: FakeBroker, seconds: float) -> int:
    dials = broker.dials
    gevent.sleep(seconds)
    return broker.dials - dials


def test_a_node_that_is_back_within_a_minute_is_dialled_within_a_second(broker: FakeBroker, run: Run) -> None:
    worker = run(lambda message: None)
    worker.until(lambda: worker.supervisor.ready)
    node = broker.nodes["a:1"]
    node.kill()
    gevent.sleep(4.0)
    node.up, began = True, time.monotonic()
    worker.until(lambda: node.connections)
    assert time.monotonic() - began < 1.5  # 0.5, and a busy machine


def test_a_node_that_stays_away_is_dialled_seldom(monkeypatch: pytest.MonkeyPatch, broker: FakeBroker, run: Run) -> None:
    monkeypatch.setattr(ways, "LOST", 0.5)
    worker = run(lambda message: None)
    worker.until(lambda: worker.supervisor.ready)
    broker.nodes["a:1"].kill()
    gevent.sleep(2.5)
    dials = broker.dials
    gevent.sleep(0.8)
    assert broker.dials - dials <= 1


def test_no_more_than_so_many_dial_a_node_at_once(broker: FakeBroker, run: Run, spec: Any, monkeypatch: Any) -> None:
    """A dial has five seconds: a thousand at once would all need more."""
    dialling = []
    most = 0
    connect = broker.connect

    def slowly(*arguments: Any, **options: Any) -> Any:
        nonlocal most
        dialling.append(None)
        most = max(most, len(dialling))
        gevent.sleep(0.002)
        dialling.pop()
        return connect(*arguments, **options)

    monkeypatch.setattr(broker, "connect", slowly)
    worker = run(*handlers(spec, 3 * ways.AT_ONCE))
    worker.until(lambda: worker.supervisor.ready)
    assert most == ways.AT_ONCE


def test_the_start_goes_through_all_handlers_seldom_however_many_connect_one_by_one(
    broker: FakeBroker, run: Run, spec: Any, monkeypatch: Any
) -> None:
    """At each of their connections it would cost the square of their number."""
    looks, connects = [], itertools.count()
    connect, look = broker.connect, Supervisor._check_refusals

    def one_by_one(*arguments: Any, **options: Any) -> Any:
        gevent.sleep(0.001 * (next(connects) % 5))
        return connect(*arguments, **options)

    monkeypatch.setattr(broker, "connect", one_by_one)
    monkeypatch.setattr(Supervisor, "_check_refusals", lambda self: (looks.append(None), look(self)))
    began = time.monotonic()
    worker = run(*handlers(spec, 300))
    worker.until(lambda: len(worker.supervisor._diallers) > 300)  # the start is over
    assert len(broker.connections()) >= 300
    assert len(looks) <= 3 + (time.monotonic() - began) / GLANCE


def test_a_frozen_node_holds_up_neither_the_start_nor_the_other_nodes(broker: FakeBroker, run: Run, monkeypatch: Any) -> None:
    frozen = broker.node("b:1")
    connect = broker.connect

    def hangs(node: str, *arguments: Any, **options: Any) -> Any:
        if node == frozen.name:
            gevent.sleep(30)
            raise BrokerUnreachable("frozen")
        return connect(node, *arguments, **options)

    monkeypatch.setattr(broker, "connect", hangs)
    worker = run(lambda message: None)
    broker.publish("orders", b"x")
    worker.until(lambda: broker.finished, seconds=5)
    worker.until(lambda: len(worker.supervisor._diallers) > 1, seconds=20)  # the start is over


def test_a_node_that_cannot_keep_the_timeout_is_an_error_at_start_although_another_one_can(broker: FakeBroker, run: Run) -> None:
    broker.node("b:1").limits = Limits(lease=60, max_lease=100, max_grant=2500)
    worker = run(lambda message: None, timeout=200.0)
    with pytest.raises(BadHandler, match="timeout=200 is longer than b:1 keeps"):
        worker.greenlet.get(timeout=5)


def test_a_node_that_is_known_no_more_is_forgotten(broker: FakeBroker, run: Run) -> None:
    broker.node("b:1")
    worker = run(lambda message: None, supervisor={"poll_interval": 0.02})
    worker.until(lambda: len(broker.connections()) == 2)
    broker.nodes.pop("b:1").kill()
    [one] = worker.supervisor._diallers[:1]
    worker.until(lambda: one._nodes.keys() == {"a:1"})
    broker.node("b:1").publish("orders", [b"x"])
    worker.until(lambda: broker.finished)  # and found again when it is back


def test_where_nodes_have_come_others_are_looked_for_soon(broker: FakeBroker, run: Run) -> None:
    """nsqds register with an nsqlookupd that has just come back one after the other."""
    worker = run(lambda message: None, supervisor={"poll_interval": 600.0})
    worker.until(lambda: worker.supervisor.ready)
    broker.node("b:1").publish("orders", [b"x"])
    worker.until(lambda: broker.finished, seconds=5)


def test_when_nothing_changes_nodes_are_looked_for_at_the_poll_interval(broker: FakeBroker, run: Run) -> None:
    worker = run(lambda message: None, supervisor={"poll_interval": 15.0})
    worker.until(lambda: worker.supervisor.ready)
    [one] = worker.supervisor._diallers[:1]
    assert one._pause() == dialler.UNKNOWN_POLL
    one._known_since -= 60
    assert 5 <= one._pause() <= 7
    one._known_since -= 600
    assert one._pause() == 15


class Cutter:
    """Ends connections, as a proxy with a short patience does."""

    def __init__(self, broker: FakeBroker) -> None:
        self.node = broker.nodes["a:1"]

    def cut(self) -> None:
        for connection in list(self.node.connections):
            connection.end(BrokerUnreachable("cut"))


def test_a_connection_on_which_a_message_was_settled_counts_as_healthy_however_short_it_was(broker: FakeBroker, run: Run) -> None:
    worker, cutter = run(lambda message: None), Cutter(broker)
    for number in range(1, 15):
        broker.publish("orders", b"x")
        began = time.monotonic()
        worker.until(lambda number=number: len(broker.finished) == number)
        assert time.monotonic() - began < 1.0, "the first pause of 0.1 s, each time"
        cutter.cut()


def test_so_does_one_whose_handlers_wait(broker: FakeBroker, run: Run) -> None:
    worker, cutter = run(lambda message: gevent.sleep(0.001)), Cutter(broker)
    for number in range(1, 15):
        broker.publish("orders", b"x")
        began = time.monotonic()
        worker.until(lambda number=number: len(broker.finished) == number)
        assert time.monotonic() - began < 1.0
        cutter.cut()


def test_connections_that_end_at_once_with_nothing_settled_are_made_less_and_less_often(broker: FakeBroker, run: Run) -> None:
    worker, cutter = run(lambda message: None), Cutter(broker)
    worker.until(lambda: worker.supervisor.ready)
    dials, until = broker.dials, time.monotonic() + 2.0
    while time.monotonic() < until:
        cutter.cut()
        gevent.sleep(0.002)
    assert broker.dials - dials <= 7


def test_a_node_that_refuses_one_handler_is_dialled_by_the_others(
    broker: FakeBroker, run: Run, spec: Any, monkeypatch: Any
) -> None:
    connect = broker.connect

    def full(node: str, topic: str, *arguments: Any, **options: Any) -> Any:
        if topic == "orders0":
            raise BrokerError("E_SUB_FAILED", "too many consumers")
        return connect(node, topic, *arguments, **options)

    monkeypatch.setattr(broker, "connect", full)
    worker = run(*handlers(spec, 5))
    worker.until(lambda: len(broker.connections()) == 4)


@pytest.mark.parametrize(("stood", "failures", "least", "most"), [
    (0.0, 20, 7.5, 15.0),  # refused: for longer each time
    (0.5, 20, 7.5, 15.0),
    (2.0, 20, 2.0, 2.0),  # cut by a proxy: missed for no longer than it stood
    (100.0, 1, 0.05, 0.1),
])  # fmt: skip
def test_the_pause_after_a_connection(stood: float, failures: int, least: float, most: float) -> None:
    assert least <= tie.pause_after(stood, failures) <= most


def test_where_nodes_never_change_they_are_asked_for_once(broker: FakeBroker, run: Run, monkeypatch: Any) -> None:
    monkeypatch.setattr(broker, "capabilities", replace(broker.capabilities, discovers=False))
    asked: list[str] = []
    discover = broker.discover
    monkeypatch.setattr(broker, "discover", lambda topic, channel: asked.append(topic) or discover(topic))
    worker = run(lambda message: None, supervisor={"poll_interval": 0.01})
    worker.until(lambda: worker.supervisor.ready)
    node = broker.nodes["a:1"]
    node.kill()
    node.up = True
    worker.until(lambda: node.connections)
    assert asked == ["orders"]


def test_where_topics_do_not_come_to_be_by_themselves_they_are_made_before_a_handler_is_connected(
    broker: FakeBroker, run: Run, monkeypatch: Any
) -> None:
    monkeypatch.setattr(broker, "capabilities", replace(broker.capabilities, auto_create=False, discovers=False))
    broker.ensure_error = BrokerUnreachable("no leader yet")
    worker = run(lambda message: None, supervisor={"poll_interval": 0.01})
    gevent.sleep(0.05)
    assert (broker.ensured, broker.dials) == ([], 0)
    broker.ensure_error = None
    worker.until(lambda: worker.supervisor.ready)
    assert broker.ensured == [("orders.billing.dead", ()), ("orders", ("billing",))]


def test_where_they_do_nothing_is_made(broker: FakeBroker, run: Run) -> None:
    worker = run(lambda message: None)
    worker.until(lambda: worker.supervisor.ready)
    assert broker.ensured == []
