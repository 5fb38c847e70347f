"""The rules for values of an option of ``@handler``. The options themselves are in ``handler``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from framework.errors import Backoff, HandlerTimeout, Reject, Retry, Skip

Action: TypeAlias = type[Retry] | type[Reject] | type[Backoff] | Retry | Reject | Backoff
Policy: TypeAlias = tuple[tuple[type[Exception], Action], ...]


@dataclass(frozen=True, slots=True)
class Option:
    """The rule of one option."""

    default: float
    least: float
    most: float
    unit: str
    whole: bool = True
    above: bool = False
    """``least`` itself is too little."""

    def allows(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return (self.least < value if self.above else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        kind = "whole number" if self.whole else "number"
        low = f"above {self.least:g}" if self.above else f"from {self.least:g}"
        return f"a {kind} of {self.unit} {low} to {self.most:g}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The rule of an option that is one of a few words; the first is the default."""

    words: tuple[str, ...]

    @property
    def default(self) -> str:
        return self.words[0]

    def allows(self, value: object) -> bool:
        return value in self.words

    def __str__(self) -> str:
        return f"one of {', '.join(map(repr, self.words))}"


@dataclass(frozen=True, slots=True)
class Flag:
    """The rule of an option that is said or not."""

    default: bool = False

    def allows(self, value: object) -> bool:
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "True or False"


@dataclass(frozen=True, slots=True)
class Chain:
    """The rule of the option that names middleware; ``hooks`` checks each of them."""

    default: tuple[object, ...] = ()

    def allows(self, value: object) -> bool:
        return isinstance(value, list | tuple)

    def __str__(self) -> str:
        return "a list of middleware, as [Timing(), Session()]"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rule of the option that says what exceptions mean."""

    default: Policy = ()

    def allows(self, value: object) -> bool:
        return isinstance(value, Mapping) and all(_is_error(kind) and _is_action(action) for kind, action in value.items())

    def __str__(self) -> str:
        return (
            "a dict of exception classes, each with Retry, Reject or Backoff, as {ValueError: Reject, OSError: Retry(delay=60)} "
            "(for a call that takes too long there is on_timeout)"
        )


def _is_error(kind: object) -> bool:
    known = (Retry, Reject, Backoff, Skip, HandlerTimeout)  # they say themselves what they mean
    return isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, known)


def _is_action(action: object) -> bool:
    actions = (Retry, Reject, Backoff)
    return action in actions or type(action) in actions
