"""Limits that an operator sets for topics by name: ``orders=1000``, or ``*=1000`` for all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from framework.names import is_valid

Limit = TypeVar("Limit")
OTHERS = "*"


def setting(parse: Callable[[str], Limit]) -> Callable[[str], tuple[str, Limit]]:
    """Reads a flag's value. Raises ValueError."""

    def parsed(text: str) -> tuple[str, Limit]:
        name, given, value = text.partition("=")
        if not given or not (name == OTHERS or is_valid(name)):
            raise ValueError("it is not TOPIC=LIMIT, nor *=LIMIT")
        return name, parse(value)

    return parsed


class PerTopic(Generic[Limit]):
    """The limits of one kind. The last one that is set for a name wins."""

    def __init__(self, settings: Iterable[tuple[str, Limit]]) -> None:
        self._limits = dict(settings)

    def __bool__(self) -> bool:
        return bool(self._limits)

    def of(self, topic: str) -> Limit | None:
        """None: it has none."""
        return self._limits.get(topic, self._limits.get(OTHERS))
