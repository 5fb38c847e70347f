"""Real RocketMQs set up otherwise, at length: two masters of which one is killed, one that joins later, one without timers."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from framework.engine.supervisor import Supervisor
from framework.errors import PublishError, Retry
from framework.handler import make_spec
from framework.message import Message
from framework.publisher import Publisher
from framework.testing.conformance.receiver import Held
from framework.testing.rocketmq import PROMPT, RocketMQ, real_rocketmq
from framework.testing.servers import ServerMissing
from framework.transports import open_transports
from tests.conftest import missing
from tests.transports.rocketmq.kit import Sink, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]


def made(folder: Path, settings: dict[str, str]) -> RocketMQ:
    try:
        return real_rocketmq(folder, settings)
    except ServerMissing as error:
        missing(str(error))
        raise


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[RocketMQ]:
    """Two masters of one cluster."""
    server = made(tmp_path, PROMPT)
    server.add("broker-b", PROMPT)
    server.start()
    yield server
    server.kill()


def aside(work: object) -> None:
    """In a native thread, while this one's hub turns."""
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    until(lambda: not thread.is_alive(), 60.0)


@pytest.mark.parametrize("at_once", [1, 20], ids=["one by one", "in batches"])
def test_while_one_master_is_killed_again_and_again_what_was_stored_is_there(pair: RocketMQ, at_once: int) -> None:
    url = f"rocketmq://{pair.address}?poll=200ms"
    (transport,) = open_transports([url])
    transport.ensure("orders", ["billing"])
    publisher = Publisher(url, timeout=20.0)
    stored, unknown, refused = Counter[bytes](), Counter[bytes](), Counter[bytes]()
    over = False
    bodies = (b"%d" % number for number in range(10**9))

    def publish() -> None:
        while not over:
            some = [next(bodies) for _ in range(at_once)]
            try:
                publisher.publish_many("orders", some)
                stored.update(some)
            except PublishError as error:
                (refused if error.stored is False else unknown).update(some)
            gevent.sleep(0.002 * at_once)

    publishing = gevent.spawn(publish)
    for number in range(4):
        victim = pair.brokers[number % 2]
        before = len(stored)
        until(lambda before=before: len(stored) > before + 200)  # type: ignore[misc]
        gevent.sleep(random.uniform(0, 0.05))
        victim.kill()
        before = len(stored)
        until(lambda before=before: len(stored) > before + 200)  # type: ignore[misc]  # by the other one
        aside(victim.start)
    over = True
    publishing.join()
    publisher.close()
    assert not refused, "there was always one that could store it"
    sinks = [Sink(), Sink()]
    reading = [
        transport.connect(node, "orders", "billing", sink) for node, sink in zip(("broker-a", "broker-b"), sinks, strict=True)
    ]
    for connection in reading:
        connection.grant(3000)
    until(lambda: stored.keys() <= sinks[0].bodies.keys() | sinks[1].bodies.keys(), 60.0)
    seen = sinks[0].bodies.keys() | sinks[1].bodies.keys()
    for connection in reading:
        connection.close()
    until(lambda: all(sink.closings for sink in sinks))
    print(f"{len(stored)} stored, {len(unknown)} unknown, of these {len(unknown.keys() & seen)} stored")
    assert len(unknown) <= 4 * at_once
    transport.close()


def test_while_one_master_stands_still_what_only_waits_waits_on_the_other_and_uses_no_attempt(pair: RocketMQ) -> None:
    """Its name server names it for two minutes more. That it did not say what waits there had each wait count as an attempt."""
    url = f"rocketmq://{pair.address}?poll=200ms&answer_timeout=1s"
    attempts: Counter[bytes] = Counter()
    numbers: dict[bytes, int] = {}

    def handle(message: Message) -> None:
        numbers[message.body] = max(numbers.get(message.body, 0), message.attempts)
        attempts[message.body] += 1
        if attempts[message.body] < 8:
            raise Retry("one at a time", delay=0.5, count=False)

    publisher = Publisher(url, timeout=10)
    publisher.publish("orders", b"first")
    spec = make_spec(handle, "orders", "billing", {"max_attempts": 3})
    supervisor = Supervisor([spec], open_transports([url]), publish=publisher.publish)
    greenlet = gevent.spawn(supervisor.run)
    (ledger,) = supervisor.ledgers.values()
    bodies = [b"%d" % number for number in range(20)]
    with pair.brokers[1].frozen():
        until(lambda: not any(publisher.publish_each("orders", [b"try"])), 60.0)  # it is known to be silent
        assert not any(publisher.publish_each("orders", bodies))
        until(lambda: all(attempts[body] == 8 or numbers.get(body, 0) > 2 for body in bodies), 60.0)
    supervisor.stop()
    greenlet.get(timeout=60)
    publisher.close()
    assert ledger.as_dict()["dead"] == 0
    assert {numbers[body] for body in bodies} == {1}


def test_a_broker_that_joins_later_is_found(tmp_path: Path) -> None:
    server = made(tmp_path, PROMPT)
    server.start()
    try:
        url = f"rocketmq://{server.address}?poll=200ms"
        (transport,) = open_transports([url])
        transport.ensure("orders", ["billing"])
        assert transport.discover("orders", "billing") == {"broker-a"}
        late = server.add("broker-b", PROMPT)
        aside(late.start)
        until(lambda: {info.node for info in transport.probe()} == {"broker-a", "broker-b"})
        transport.close()
    finally:
        server.kill()


def test_without_timers_a_publish_is_delayed_by_a_level_and_no_longer_than_the_longest(tmp_path: Path) -> None:
    server = made(tmp_path, {"timerWheelEnable": "false"})
    server.start()
    try:
        (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull&poll=200ms"])
        (info,) = transport.probe()
        assert (info.limits.max_defer, transport.capabilities.max_defer) == (7200.0, 7200.0)
        assert transport.capabilities.delay_levels[:3] == (1.0, 5.0, 10.0)
        transport.ensure("orders", ["billing"])
        held = Held(lambda receiver: transport.connect("broker-a", "orders", "billing", receiver))
        held.grant(10)
        producer = transport.producer()
        began = time.monotonic()
        producer.publish("orders", [b"later"], delay=3.0)
        until(lambda: held.taken)
        assert 4.9 <= time.monotonic() - began < 15.0
        with pytest.raises(PublishError, match="keeps a delay of 7200 s at most") as refused:
            producer.publish("orders", [b"too late"], delay=8000.0)
        assert refused.value.stored is False
        held.connection.finish(held.taken[0])
        until(held.balanced)
        held.connection.close()
        producer.close()
        transport.close()
        (by_pop,) = open_transports([f"rocketmq://{server.address}"])
        (info,) = by_pop.probe()
        assert "timerWheelEnable=false" in info.obstacles[0]
        by_pop.close()
    finally:
        server.kill()
