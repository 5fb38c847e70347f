"""Takes users, passwords and secret options of URLs out of events, wherever in them they are."""

from __future__ import annotations

from typing import Any

from framework.observe.logging import scrub


def scrubbed(event: Any, hint: Any) -> Any:
    """``before_send`` of the SDK."""
    return _clean(event)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {_clean(name): _clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(one) for one in value]
    return value
