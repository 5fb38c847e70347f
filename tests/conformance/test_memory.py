"""The conformance suite over the broker in memory: no socket, so no proxy, and no process but this one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from framework.testing.conformance import Node, Subject, Suite
from framework.transports import memory
from framework.transports.contract import Limits
from tests.conformance.endings import Endings

_numbers = itertools.count(1)


class MemoryNode(Node):
    def __init__(self, name: str, limits: Limits | None) -> None:
        self._broker = memory.named(name)
        self._broker.limits = limits or self._broker.limits
        self.url = self._broker.url

    def up(self) -> None:
        self._broker.start()

    def down(self) -> None:
        self._broker.stop()

    def cut(self) -> None:
        self._broker.drop()

    def full(self, full: bool) -> None:
        self._broker.faults.refuse = 1_000_000 if full else 0


class Memory(Subject):
    wrong_urls = ("memory://user:secret@name", "memory://name?nope=1", "memory://name/path")
    reachable = False
    fills = True

    def make(self, *, brief: bool) -> Node:
        limits = Limits(lease=self.brief, max_lease=900.0, max_grant=1_000_000) if brief else None
        return MemoryNode(f"conformance-{next(_numbers)}", limits)


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    with Memory() as made:
        yield made


class TestMemory(Suite, Endings):
    """Every chapter."""
