"""How an App ends: when it is told to, and when the nsqd that it brought along has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import gevent
import pytest

from framework.app import App
from framework.errors import BrokerUnreachable
from framework.handler import make_spec
from framework.message import Message
from framework.settings import Settings
from framework.transports.memory import MemoryBroker, add, forget


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    made = MemoryBroker("app-stop")
    add(made)
    yield made
    forget(made.name)


@pytest.fixture
def nsqd(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands for the one that an App without brokers starts, and can end at a chosen moment."""
    made = SimpleNamespace(url=broker.url, ended=False)

    @contextmanager
    def embedded(settings: Settings) -> Iterator[SimpleNamespace]:
        yield made

    monkeypatch.setattr("framework.app.embedded_nsqd", embedded)
    return made


def nothing(message: Message) -> None:
    """What is decorated."""


def started(app: App) -> gevent.Greenlet:
    running = gevent.spawn(app.run)
    with gevent.Timeout(10):
        while not (app._supervisor and app._supervisor.ready):
            gevent.sleep(0.01)
    return running


def test_an_nsqd_that_ends_ends_the_worker_and_is_named(nsqd: SimpleNamespace) -> None:
    running = started(App([make_spec(nothing, "orders", "billing", {})], Settings()))
    nsqd.ended = True
    with pytest.raises(BrokerUnreachable, match=r"the embedded nsqd on .* has ended"):
        running.get(timeout=10)


def test_an_nsqd_that_ends_while_the_worker_stops_is_no_failure(nsqd: SimpleNamespace) -> None:
    """A supervisor, or a terminal, may end both at once."""
    app = App([make_spec(nothing, "orders", "billing", {})], Settings())
    running = started(app)
    nsqd.ended = True
    app.stop()
    running.get(timeout=10)


def test_a_stop_lets_finish_what_runs_and_a_second_one_does_not(broker: MemoryBroker) -> None:
    ended: list[bytes] = []

    def work(message: Message) -> None:
        gevent.sleep(float(message.body))
        ended.append(message.body)

    app = App([make_spec(work, "orders", "billing", {"concurrency": 2})], Settings(brokers=(broker.url,)))
    running = started(app)
    broker.store("orders", [b"0.3", b"60"], 0.0, None)
    with gevent.Timeout(10):
        while broker.in_flight("orders", "billing") < 2:
            gevent.sleep(0.01)
    app.stop()
    with gevent.Timeout(10):
        while not ended:
            gevent.sleep(0.01)
    assert not running.dead
    app.stop()
    running.get(timeout=10)
    assert (ended, broker.waiting("orders", "billing")) == ([b"0.3"], [b"60"])
