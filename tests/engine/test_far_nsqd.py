"""An nsqd that is far away: as many messages are under way as there are slots, and not one for each round trip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest

from framework.engine.supervisor import Supervisor
from framework.message import Message
from framework.testing.proxy import Proxy
from framework.testing.servers import Server
from framework.transports import open_transports
from framework.transports.nsq.dial import dial
from tests.begun import Begun

pytestmark = pytest.mark.real


def test_the_quickest_answer_of_a_dial_says_how_far_nsqd_is(nsqd: Server, start_proxy: Callable[[str], Proxy]) -> None:
    proxy = start_proxy(nsqd.address)
    proxy.delay(0.03)
    with dial(proxy.address) as line:
        line.check_admitted()
        far = line.quickest
    proxy.restore()
    with dial(nsqd.address) as line:
        for _ in range(20):
            line.check_admitted()
        assert line.quickest < 0.06 <= far


@pytest.mark.parametrize("way", [0.0025, 0.01])
def test_all_slots_work_where_a_round_trip_is_longer_than_a_call(
    nsqd: Server, start_proxy: Callable[[str], Proxy], spec: Any, way: float
) -> None:
    """20 slots for calls of 5 ms: 20 begin within 50 ms, where one for each round trip would be 10, or 2."""
    near, proxy = open_transports([f"nsq://{nsqd.address}"])[0], start_proxy(nsqd.address)
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http("/channel/create?topic=orders&channel=billing", b"")
    producer, published = near.producer(), 0
    proxy.delay(way)
    begun = Begun(20)

    def handle(message: Message) -> None:
        begun.one()
        gevent.sleep(0.005)

    supervisor = Supervisor([spec(handle, concurrency=20)], open_transports([f"nsq://{proxy.address}"]), publish=print)
    greenlet = gevent.spawn(supervisor.run)
    (ledger,) = supervisor.ledgers.values()
    try:
        with gevent.Timeout(60.0):
            while begun.shortest > 0.05 or ledger.finished < 300:
                if ledger.finished > published - 2500:  # a busy machine may handle many before 20 begin so soon
                    producer.publish("orders", [b"x"] * 5000)
                    published += 5000
                gevent.sleep(0.01)
    finally:
        producer.close()
        proxy.restore()
        supervisor.stop(now=True)
        greenlet.get(timeout=30)
    assert ledger.balance(0) == 0
