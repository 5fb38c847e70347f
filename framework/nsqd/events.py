"""Events that topics and channels send, and who takes them. An event's class says what happened; its sender knows no taker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Event = TypeVar("Event")


class Events:
    """Hands each event to those who take its kind, at once and in the order in which they came."""

    def __init__(self) -> None:
        self._takers: dict[type, list[Callable[[Any], None]]] = {}

    def on(self, kind: type[Event], take: Callable[[Event], None]) -> None:
        """Have ``take`` called with each event of this kind from now on. It must not block."""
        self._takers.setdefault(kind, []).append(take)

    def emit(self, event: object) -> None:
        for take in self._takers.get(type(event), ()):
            take(event)
