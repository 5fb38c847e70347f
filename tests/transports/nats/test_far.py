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
from tests.begun import Begun

from .conftest import until

pytestmark = pytest.mark.real


@pytest.mark.parametrize("way", [0.005, 0.05])
def test_all_slots_work_where_a_round_trip_is_longer_than_a_call(kit: Any, start_proxy: Callable[[str], Proxy], way: float):
    """20 calls of 5 ms begin within a round trip and a half, or 50 ms, where one for each trip would be two, or five.

    They need not run at the same moment: what is asked for in two lots comes in two, for as long as the worker runs.
    """
    transport = kit.open()
    transport.ensure("orders", ["billing"])
    kit.producer(transport).publish("orders", [b"x"] * 1000)
    proxy = start_proxy(kit.server.address)
    (far,) = open_transports([f"nats://{proxy.address}"])
    proxy.to_server.delay(way)
    proxy.to_client.delay(way)
    begun = Begun(20)

    def handle(message: Message) -> None:
        begun.one()
        gevent.sleep(0.005)

    supervisor = Supervisor([make_spec(handle, "orders", "billing", {"concurrency": 20})], [far], publish=print)
    greenlet = gevent.spawn(supervisor.run)
    (ledger,) = supervisor.ledgers.values()
    try:
        until(lambda: begun.shortest < max(3 * way, 0.05))
        until(lambda: ledger.finished > 200)
    finally:
        proxy.restore()
        supervisor.stop()
        greenlet.get(timeout=30)
