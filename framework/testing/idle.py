"""Finds out whether handlers have nothing left to do, by what their broker holds. It runs and stops nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from framework.engine.ledger import Ledger
from framework.handler import HandlerSpec
from framework.middleware.later import later_topic
from framework.transports.contract import Transport
from framework.transports.memory import MemoryBroker


class Idleness(Protocol):
    """How one kind of broker is looked at."""

    pause: float
    """Seconds between two looks."""

    def idle(self) -> bool:
        """Whether nothing is left, as of now."""

    def left(self) -> str:
        """What is left, in words."""


class Near:
    """The broker in memory: one look is exact, and ``advance`` lets its clock jump to what is due later."""

    pause = 0.001

    def __init__(self, broker: MemoryBroker, specs: Sequence[HandlerSpec], *, advance: bool) -> None:
        self._broker = broker
        self._subscriptions = [(topic, spec.channel) for spec in specs for topic in (spec.topic, later_topic(spec))]
        self._advance = advance

    def idle(self) -> bool:
        outlook = self._broker.outlook(self._subscriptions)
        if outlook.now:
            return False
        if outlook.deferred and self._advance:
            self._broker.clock.advance(max(0.0, outlook.due - self._broker.clock.now()))
            return False
        return True

    def left(self) -> str:
        outlook = self._broker.outlook(self._subscriptions)
        return f"{outlook.now} messages to handle now, {outlook.deferred} later"


class Far:
    """Any other broker: it is asked over its own protocol, one topic after the other, so two looks must agree."""

    pause = 0.02

    def __init__(self, transport: Transport, specs: Sequence[HandlerSpec], ledgers: Mapping[str, Ledger]) -> None:
        self._transport = transport
        self._specs = specs
        self._ledgers = ledgers
        self._empty_at: Collection[int] | None = None

    def idle(self) -> bool:
        before = [ledger.received for ledger in self._ledgers.values()]
        if self._backlog():
            self._empty_at = None
            return False
        again = self._empty_at == before  # a message may have moved from a topic asked late to one asked early
        self._empty_at = before
        return again

    def left(self) -> str:
        return f"{self._backlog()} messages at the broker"

    def _backlog(self) -> int:
        asked = [(topic, spec.channel) for spec in self._specs for topic in (spec.topic, later_topic(spec))]
        return sum(sum(self._transport.backlog(topic, channel).values()) for topic, channel in asked)
