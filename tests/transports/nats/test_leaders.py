"""Another member of a cluster leads a consumer of NATS while a worker is connected to one that stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from framework.errors import FrameworkError
from framework.testing.conformance.receiver import Held
from framework.testing.servers import Server, free_port
from framework.transports import open_transports
from framework.transports.nats.dial import dial
from framework.transports.nats.session import Session

from .conftest import until
from .holding import BOTH

pytestmark = pytest.mark.real

COUNT = 50


@pytest.fixture
def members(start_nats: Callable[..., Server], version: str) -> list[Server]:
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
    blocks = [f'cluster {{ name: C1, listen: "127.0.0.1:{port}", routes: [{routes}] }}' for port in ports]
    return [start_nats(block, version=version) for block in blocks]


@pytest.fixture
def admin(members: list[Server]) -> Iterator[Session]:
    with dial(members[0].address) as line:
        session = Session(line, 30.0)
    yield session
    session.close()


def holds(transport: Any, topic: str) -> bool:
    """False while the servers elect who leads them."""
    try:
        transport.ensure(topic, ["billing"])
        transport.producer().publish(topic, [b"%d" % n for n in range(COUNT)])
    except FrameworkError:
        return False
    return True


def left(transport: Any, node: str) -> int | None:
    try:
        return transport.backlog("orders", "billing")[node]
    except FrameworkError:
        return None


@BOTH
def test_what_is_acknowledged_while_nobody_leads_is_said_again_to_the_next_leader(members, admin):
    """The server that reads an acknowledgement passes it on to nobody then, and answers a PING all the same."""
    (transport,) = open_transports([f"nats://{','.join(one.address for one in members)}?replicas=3"])
    until(lambda: holds(transport, "orders"), 60.0)
    (node,) = transport.discover("orders", "billing")
    held = Held(lambda receiver: transport.connect(node, "orders", "billing", receiver))
    held.grant(COUNT)
    until(lambda: len(held.taken) == COUNT)
    answer = admin.ask(b"$JS.API.CONSUMER.LEADER.STEPDOWN.orders.billing", b"", 5.0)
    assert b'"success":true' in answer.body.replace(b" ", b"")
    for message in list(held.taken):
        held.connection.finish(message)
    until(lambda: left(transport, node) == 0, 20.0)  # and not when the lease of 30 s ends
    assert held.receiver.tally.finished == len(held.taken) == COUNT
    held.connection.close()
    until(lambda: held.receiver.closings)
    held.check()
    transport.close()
