"""Where messages wait while a broker cannot be asked what waits there: one of its nodes is down, or all were for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gevent
import pytest

from framework.engine import later_dialler
from framework.engine.supervisor import Supervisor
from framework.errors import BrokerUnreachable, MessageRefused, PublishError, Retry
from framework.handler import make_spec
from framework.message import Message
from framework.middleware import on_end
from framework.publisher import Publisher
from framework.testing import servers
from framework.testing.proxy import Proxy
from framework.testing.servers import Server, free_port, running
from framework.transports import open_transports
from framework.transports.nsq import backlog


@pytest.fixture(params=["nsq", "beanstalkd", "nats"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Server]]:
    """The embedded nsqd looks at deferred messages at once; nsqd's own looks at new channels every five seconds."""
    if request.param != "nsq":
        yield request.param, request.getfixturevalue(f"start_{request.param}")()
    else:
        with running(servers.own_nsqd(tmp_path / "data")) as nsqd:
            yield request.param, nsqd


@pytest.mark.real
def test_while_one_of_several_nodes_is_down_a_message_waits_on_the_others_and_uses_no_attempt(server: tuple[str, Server]) -> None:
    scheme, up = server
    urls = [f"{scheme}://{up.address}", f"{scheme}://127.0.0.2:{free_port()}"]
    if scheme == "nsq":
        urls[0] += f"?http_port={up.http_port}"  # which holds for both
    attempts: list[int] = []

    def handle(message: Message) -> None:
        attempts.append(message.attempts)
        if len(attempts) < 5:
            raise Retry("one at a time", delay=0.01, count=False)

    publisher = Publisher(urls, timeout=10)
    supervisor = Supervisor(
        [make_spec(handle, "orders", "billing", {"max_attempts": 2})], open_transports(urls), publish=publisher.publish
    )
    greenlet = gevent.spawn(supervisor.run)
    publisher.publish("orders", b"body")
    (ledger,) = supervisor.ledgers.values()
    deadline = time.monotonic() + 40
    while not (ledger.finished or ledger.dead):
        assert time.monotonic() < deadline, (attempts, ledger)
        gevent.sleep(0.01)
    supervisor.stop()
    greenlet.get(timeout=30)
    publisher.close()
    assert attempts == [1] * 5
    assert ledger.as_dict()["dead"] == 0


@pytest.mark.real
@pytest.mark.parametrize("silent", ["the HTTP of one node", "all nsqlookupds"])
def test_while_those_that_are_asked_are_silent_a_message_waits_and_uses_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """They have answered before, so that what is stored will be found."""
    monkeypatch.setattr(backlog, "PATIENCE", 0.5)
    lookupd = servers.own_nsqlookupd()
    named = f"--lookupd-tcp-address={lookupd.address}"
    one, other = (servers.own_nsqd(tmp_path / name, named) for name in ("one", "other"))
    attempts: list[int] = []

    def handle(message: Message) -> None:
        attempts.append(message.attempts)
        if len(attempts) < 5:
            raise Retry("one at a time", delay=0.01, count=False)

    with running(lookupd), Proxy(other.http_address) as way:
        other.command.append(f"--broadcast-http-port={way.address.rpartition(':')[2]}")
        with running(one), running(other):
            for nsqd in (one, other):
                nsqd.http("/topic/create?topic=orders", b"")
            urls = [f"nsq+lookupd://{lookupd.http_address}"]
            [transport] = open_transports(urls)
            publisher = Publisher([transport], timeout=10)
            supervisor = Supervisor(
                [make_spec(handle, "orders", "billing", {"max_attempts": 2})], [transport], publish=publisher.publish
            )
            greenlet = gevent.spawn(supervisor.run)
            (ledger,) = supervisor.ledgers.values()
            until(lambda: supervisor.ready and len(supervisor._consumers[0].accounts) == 2)
            if silent == "all nsqlookupds":
                lookupd.kill()
            else:
                transport.topics()
                way.hold()
            publisher.publish("orders", b"body")
            until(lambda: ledger.finished or ledger.dead)
            supervisor.stop()
            greenlet.get(timeout=30)
            publisher.close()
    assert attempts == [1] * 5
    assert ledger.as_dict()["dead"] == 0


def until(condition: Callable[[], Any], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        gevent.sleep(0.01)


@pytest.mark.parametrize("known", [True, False])
def test_a_broker_that_could_not_be_asked_is_asked_again_before_the_next_poll(
    broker: Any, limited: Any, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Which is a minute later. What was stored before it was ``known`` would be fetched by nobody. What cannot be stored is given
    back, and counts no more than what can."""
    monkeypatch.setattr(later_dialler, "LOOK_WHEN_BLIND", 0.05)
    monkeypatch.setattr(later_dialler, "PATIENCE", 0.1)
    attempts: list[int] = []
    asked: list[str] = []
    told = broker.backlog

    def silent(topic: str, channel: str) -> dict[str, int]:
        asked.append(topic)
        if not known and not attempts:
            gevent.sleep(0.5)  # until something is stored
        raise BrokerUnreachable("it has just been started")

    def handle(message: Message) -> None:
        attempts.append(message.attempts)
        if len(attempts) == 2 or not known:
            gevent.spawn_later(0.1, setattr, broker, "backlog", told)
            gevent.sleep(0.2 if known else 0)
        if len(attempts) < 5:
            raise Retry("one at a time", delay=0.1, count=False)

    broker.backlog = silent
    worker = run(handle, dead=limited, max_attempts=3)
    worker.until(lambda: asked)
    broker.publish("orders", b"one")
    worker.until(lambda: len(attempts) == 5)
    worker.stop()
    assert attempts == [1] * 5


def test_a_broker_that_cannot_be_asked_for_a_moment_is_waited_for(
    broker: Any, limited: Any, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster that chooses who leads it. Given back, each wait would count as an attempt for the other workers."""
    monkeypatch.setattr(later_dialler, "LOOK_WHEN_BLIND", 0.05)
    attempts: list[int] = []
    asked: list[float] = []
    told = broker.backlog

    def silent(topic: str, channel: str) -> dict[str, int]:
        asked.append(time.monotonic())
        raise BrokerUnreachable("nobody leads")

    def handle(message: Message) -> None:
        attempts.append(message.attempts)
        if len(attempts) == 1:
            gevent.spawn_later(0.5, setattr, broker, "backlog", told)
            raise Retry("one at a time", delay=0.1, count=False)

    broker.backlog = silent
    worker = run(handle, dead=limited, max_attempts=3)
    worker.until(lambda: asked)
    broker.publish("orders", b"one")
    worker.until(lambda: len(attempts) == 2)
    worker.stop()
    assert attempts == [1, 1]
    assert "cannot wait" not in caplog.text
    assert min(later - earlier for earlier, later in pairwise(asked)) > 0.04  # it is not asked all the time


def test_what_fails_long_after_something_else_did_is_tried_again_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not what failed all the time in between."""
    monkeypatch.setattr(later_dialler, "LOOK_WHEN_BLIND", 0.02)
    monkeypatch.setattr(later_dialler, "PATIENCE", 0.1)
    monkeypatch.setattr(on_end, "APART", 0.2)
    failures = 1000

    def publish(*_: Any, **__: Any) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise PublishError("nobody leads", stored=False)

    waits = later_dialler.Waits([], [], publish)
    with pytest.raises(PublishError):
        waits.defer("orders.billing.later", b"one", 1.0)
    failures = 1
    with pytest.raises(PublishError):  # it may be the same outage
        waits.defer("orders.billing.later", b"two", 1.0)
    gevent.sleep(0.3)
    failures = 1
    waits.defer("orders.billing.later", b"three", 1.0)


@pytest.mark.parametrize("stored", [False, None])
def test_what_may_be_stored_already_is_tried_again_as_what_is_not(monkeypatch: pytest.MonkeyPatch, stored: bool | None) -> None:
    """A node stands still, and others do not. Given back, the message would be there twice too, and have one attempt less."""
    monkeypatch.setattr(later_dialler, "LOOK_WHEN_BLIND", 0.01)
    answers: list[Exception | None] = [PublishError("no answer", stored=stored), None]

    def publish(*_: Any, **__: Any) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    later_dialler.Waits([], [], publish).defer("orders.billing.later", b"one", 1.0)
    assert not answers


@pytest.mark.parametrize("error", [MessageRefused("too large"), PublishError("without a reader", stored=True)])
def test_what_no_other_try_would_change_is_not_tried_again(error: Exception) -> None:
    calls: list[str] = []

    def publish(topic: str, *_: Any, **__: Any) -> None:
        calls.append(topic)
        raise error

    with pytest.raises(PublishError):
        later_dialler.Waits([], [], publish).defer("orders.billing.later", b"one", 1.0)
    assert len(calls) == 1


def test_a_worker_that_stops_waits_for_no_broker_that_cannot_be_asked(broker: Any, limited: Any, run: Callable[..., Any]) -> None:
    calls: list[Message] = []
    asked: list[str] = []

    def silent(topic: str, channel: str) -> dict[str, int]:
        asked.append(topic)
        raise BrokerUnreachable("nobody leads")

    def handle(message: Message) -> None:
        calls.append(message)
        raise Retry("one at a time", delay=0.1, count=False)

    broker.backlog = silent
    worker = run(handle, dead=limited, max_attempts=3)
    worker.until(lambda: asked)
    broker.publish("orders", b"one")
    worker.until(lambda: calls)
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < later_dialler.PATIENCE / 2
