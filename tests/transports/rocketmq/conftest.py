"""What the tests of RocketMQ's transport share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.testing.rocketmq import RocketMQ
from tests.transports.rocketmq.kit import Kit
from tests.transports.rocketmq.shop import Shop


@pytest.fixture
def kit(rocketmq: RocketMQ) -> Iterator[Kit]:
    made = Kit(rocketmq)
    yield made
    made.close()


@pytest.fixture
def shop(kit: Kit, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    """By PULL, unless its module has other ``OPTIONS`` of the broker URL."""
    made = Shop(kit, tmp_path, getattr(request.module, "OPTIONS", "mode=pull"))
    yield made
    made.close()
