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

from framework.errors import PublishError
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
