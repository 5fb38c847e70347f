"""A server that is far away: as many messages are asked for at once as there are slots, and not one for each round trip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest

from framework.engine.supervisor import Supervisor
from framework.handler import make_spec
from framework.message import Message
from framework.testing.proxy import Proxy
from framework.transports import open_transports

from .conftest import until

pytestmark = pytest.mark.real


@pytest.mark.parametrize("way", [0.005, 0.05])
def test_all_slots_work_where_a_round_trip_is_longer_than_a_call(kit: Any, start_proxy: Callable[[str], Proxy], way: float):
    """20 slots for calls of 5 ms. One message for each round trip would be a hundred in a second there, or ten."""
    transport = kit.open()
    transport.ensure("orders", ["billing"])
    kit.producer(transport).publish("orders", [b"x"] * 1000)
    proxy = start_proxy(kit.server.address)
    (far,) = open_transports([f"nats://{proxy.address}"])
    proxy.to_server.delay(way)
    proxy.to_client.delay(way)
    running = most = 0

    def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        gevent.sleep(0.005)
        running -= 1

    supervisor = Supervisor([make_spec(handle, "orders", "billing", {"concurrency": 20})], [far], publish=print)
    greenlet = gevent.spawn(supervisor.run)
    (ledger,) = supervisor.ledgers.values()
    try:
        until(lambda: most == 20, 10.0)
        until(lambda: ledger.finished > 200)
    finally:
        proxy.restore()
        supervisor.stop()
        greenlet.get(timeout=30)
