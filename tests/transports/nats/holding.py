"""What the tests of connections whose socket breaks begin with: messages that are held, and what is left of them."""

from __future__ import annotations

import pytest

from .conftest import until

BOTH = pytest.mark.parametrize("version", [pytest.param("2.9", marks=pytest.mark.slow), "2.15"])


def holding(kit, transport, count):
    """A connection with so many messages in flight."""
    held = kit.hold(transport, grant=count)
    kit.producer(transport).publish("orders", [b"%d" % n for n in range(count)])
    until(lambda: len(held.taken) == count)
    return held


def left(kit, transport):
    return transport.backlog("orders", "billing")[kit.server.address]
