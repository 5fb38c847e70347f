"""What the tests of RocketMQ's transport share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from framework.testing.rocketmq import RocketMQ
from tests.transports.rocketmq.kit import Kit


@pytest.fixture
def kit(rocketmq: RocketMQ) -> Iterator[Kit]:
    made = Kit(rocketmq)
    yield made
    made.close()
