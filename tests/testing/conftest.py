"""The fixtures of the plugin, made here: a test of them sees how each begins and ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from framework.handler import _registry
from framework.testing.fixtures import memory_broker, runner


@dataclass
class Order:
    id: int


@pytest.fixture(autouse=True)
def _no_handlers_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registry, "entries", {})


@pytest.fixture
def broker() -> Iterator[object]:
    with memory_broker() as broker:
        yield broker


@pytest.fixture
def worker(broker) -> Iterator[object]:
    with runner(broker) as worker:
        yield worker
