"""What the spool's tests share: batches of messages as a connection would have delivered them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from framework.message import Batch, Message
from tests.origins import Source
from tests.storages import _gateway, memory, s3, spool_url

__all__ = ["_gateway", "memory", "s3", "spool_url"]


@pytest.fixture
def batch() -> Callable[..., Batch]:
    """``batch(0, 10)``: the messages 0 to 9; ``node`` and ``topic`` say where they came from."""

    def make(first: int, last: int, *, body: bytes | None = None, **source: Any) -> Batch:
        origin = Source(**source)
        return Batch(
            [
                Message(
                    id=b"%016x" % n,
                    timestamp=1_700_000_000_123_456_789 + n,
                    attempts=1,
                    body=body or b"m%d" % n,
                    connection=origin,
                )
                for n in range(first, last)
            ]
        )

    return make
