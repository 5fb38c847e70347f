"""A broken variant of the example of a transport: it breaks one promise of the contract, and a case must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from framework.testing.conformance import Core, Leases, Publishing


class Variant(NamedTuple):
    """``case`` of ``chapter`` must fail when ``change`` was made."""

    change: Callable[[Any], None]
    chapter: type[Core | Leases | Publishing]
    case: str
    arguments: dict[str, str]
    control: Callable[[Any], None] | None
    """A change of the module with which the case passes, where the example itself does not declare what is broken."""

    def __str__(self) -> str:
        return self.change.__name__


VARIANTS: list[Variant] = []


def dies_in(
    case: str,
    chapter: type[Core | Leases | Publishing] = Core,
    control: Callable[[Any], None] | None = None,
    **arguments: str,
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Note a variant, and the case that must fail of it."""

    def note(change: Callable[[Any], None]) -> Callable[[Any], None]:
        VARIANTS.append(Variant(change, chapter, case, arguments, control))
        return change

    return note


def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Have ``wrapper(original, self, ...)`` called in the place of a method."""
    original = getattr(owner, name)
    setattr(owner, name, lambda self, *given, **named: wrapper(original, self, *given, **named))
