"""What the tests of RocketMQ's transport share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from framework.errors import BrokerUnreachable
from framework.testing.rocketmq import RocketMQ
from framework.transports.rocketmq import membership
from tests.transports.rocketmq.brokers import House
from tests.transports.rocketmq.group import Group
from tests.transports.rocketmq.kit import Kit
from tests.transports.rocketmq.paper import Popper, Reader
from tests.transports.rocketmq.shop import Shop


@pytest.fixture
def kit(rocketmq: RocketMQ) -> Iterator[Kit]:
    made = Kit(rocketmq)
    yield made
    made.close()


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    return House(monkeypatch)


@pytest.fixture
def shop(kit: Kit, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    """By PULL, unless its module has other ``OPTIONS`` of the broker URL."""
    made = Shop(kit, tmp_path, getattr(request.module, "OPTIONS", "mode=pull"))
    yield made
    made.close()


@pytest.fixture
def reader() -> Iterator[Reader]:
    yield (made := Reader())
    made.connection.lost(BrokerUnreachable("the end"))
    assert made.receiver.wrongs == []


@pytest.fixture
def popper() -> Iterator[Popper]:
    yield (made := Popper())
    made.connection.lost(BrokerUnreachable("the end"))
    assert made.receiver.wrongs == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """That of memberships, which stands but for what a test adds: from a whole second on, so that sums are exact."""
    now = [float(int(monotonic()))]
    monkeypatch.setattr(membership, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def group(clock: list[float]) -> Group:
    return Group(clock)
