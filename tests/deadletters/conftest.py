"""Dead letters as handlers leave them, on whichever broker a test uses."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from framework.message import Message
from framework.middleware.dead_letter import letters

TOPIC = "orders.billing.dead"


@pytest.fixture
def letter() -> Callable[..., bytes]:
    """``letter(3)``: the dead letter of the message with the id 3, and the body ``body 3``."""

    def make(number: int, reason: str = "ValueError: odd", *, topic: str = "orders", channel: str = "billing") -> bytes:
        origin = SimpleNamespace(topic=topic, channel=channel, node="a:4150")
        message = Message(b"%016x" % number, 1_700_000_000_000_000_000, 4, b"body %d" % number, origin)
        return next(letters(message, reason, ""))

    return make
