"""How an App ends: when it is told to, and when the nsqd that it brought along has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework import publisher
from framework.app import App
from framework.engine.ledger import Ledger
from framework.errors import BrokerUnreachable, WrongUse
from framework.handler import make_spec
from framework.message import Message
from framework.publisher import Publisher
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


def test_at_its_end_an_app_leaves_neither_a_publisher_nor_a_greenlet(
    nsqd: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Publisher] = []
    close = Publisher.close

    def closing(made: Publisher) -> None:
        closed.append(made)
        close(made)

    monkeypatch.setattr(Publisher, "close", closing)
    looks: list[bool] = []
    monkeypatch.setattr("framework.app._LOOK_SECONDS", 0.01)
    app = App([make_spec(nothing, "orders", "billing", {})], Settings())
    running = started(app)
    assert (publisher._default is not None, closed) == (True, [])
    app.stop()
    running.get(timeout=10)
    assert (publisher._default, len(closed)) == (None, 1)
    assert app._supervisor is not None
    monkeypatch.setattr(app._supervisor, "stop", lambda *, now: looks.append(now))
    nsqd.ended = True
    gevent.sleep(0.05)
    assert looks == [], "nobody looks any more whether it has"


def test_at_its_end_an_app_says_what_became_of_its_messages_and_what_it_published(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App([make_spec(nothing, "orders", "billing", {}), make_spec(nothing, "mail", "send", {})], Settings())
    made: Any = SimpleNamespace(
        ledgers={"orders/billing": Ledger(received=3, finished=3)},
        published={"orders/billing": {"mail": 2, "audit": 1}, "mail/send": {}},
    )
    with caplog.at_level("INFO", "framework.app"):
        app._write_ledgers(made)
    words = [record.getMessage() for record in caplog.records]
    assert words[0].startswith("ledger orders/billing received=3 finished=3 ")
    assert words[1:] == ["published by orders/billing audit=1 mail=2"]


@pytest.mark.parametrize(("taken", "logged"), [(True, 0), (False, 1)])
def test_what_a_master_has_taken_is_not_logged_as_well(taken: bool, logged: int, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    superior: Any = SimpleNamespace(tell_books=lambda *books: (told.append(books), taken)[1])
    app = App([make_spec(nothing, "orders", "billing", {})], Settings(), superior=superior)
    made: Any = SimpleNamespace(ledgers={"orders/billing": Ledger()}, published={})
    with caplog.at_level("INFO", "framework.app"):
        app._write_ledgers(made)
    assert (len(told), len(caplog.records)) == (1, logged)


def test_whoever_runs_it_as_one_of_several_knows_of_it_before_it_subscribes(broker: MemoryBroker) -> None:
    begun: list[Any] = []
    superior: Any = SimpleNamespace(begun=lambda one: begun.append((one, one.ready)), tell_books=lambda *_: True)
    app = App([make_spec(nothing, "orders", "billing", {})], Settings(brokers=(broker.url,)), superior=superior)
    running = started(app)
    app.stop()
    running.get(timeout=10)
    assert begun == [(app.supervisor, False)]


def test_an_app_that_does_not_run_cannot_be_changed() -> None:
    app = App([make_spec(nothing, "orders", "billing", {})], Settings())
    for change in (app.pause, app.resume, lambda name: app.set_max_in_flight(name, 3)):
        with pytest.raises(WrongUse, match="does not run"):
            change("orders/billing")
