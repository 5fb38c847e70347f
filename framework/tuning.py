"""What an operator changes of handlers without a commit: the setting ``handlers``, as ``orders/billing: {concurrency: 20}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from framework import durations
from framework.errors import BadHandler, BadSetting
from framework.handler import OPTIONS, HandlerSpec, with_options

TUNABLE = ("concurrency", "max_in_flight", "timeout", "max_attempts", "batch", "linger")
"""The options that change how much and how long, not what a handler means."""
_DURATIONS = ("timeout", "linger")

Tuning = tuple[tuple[str, Mapping[str, Any]], ...]
"""Handler, as ``topic/channel`` -> its options, checked each by itself."""


def parse(value: object) -> Tuning:
    """From a mapping, or from its YAML. Raises ValueError with words that go behind the value."""
    if isinstance(value, str):
        import yaml  # noqa: PLC0415 - slow to import, and only for those who have a text

        from framework import strict_yaml  # noqa: PLC0415

        try:
            value = strict_yaml.load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict) or not all(isinstance(options, dict) for options in value.values()):
        raise ValueError("is not a mapping of handlers: write {orders/billing: {concurrency: 20}}")
    return tuple((str(name), _options(str(name), options)) for name, options in value.items())


def _options(handler: str, given: Mapping[Any, Any]) -> dict[str, Any]:
    values = {}
    for name, value in given.items():
        if name not in TUNABLE:
            nearest = next(iter(get_close_matches(str(name), TUNABLE, 1, cutoff=0.0)))
            raise ValueError(
                f"has {name!r} for {handler}, which cannot be set here: did you mean {nearest!r}? "
                f"What can is {', '.join(TUNABLE)}"
            )
        seconds = durations.seconds(value) if name in _DURATIONS and isinstance(value, str) else None
        values[name] = value if seconds is None else seconds
        if not OPTIONS[name].allows(values[name]):
            raise ValueError(f"has {name}={value!r} for {handler}, which is not {OPTIONS[name]}")
    return values


def tuned(handlers: Sequence[HandlerSpec], tuning: Tuning) -> list[HandlerSpec]:
    """``handlers`` with what the setting says of them. Raises BadSetting, where there is no such handler among them as well."""
    wanted = dict(tuning)
    known = [spec.name for spec in handlers]
    for name in wanted:
        if name not in known:
            raise BadSetting(f"the setting `handlers` names {name!r}, which is not among those to run: {', '.join(known)}")
    try:
        return [with_options(spec, wanted[spec.name]) if spec.name in wanted else spec for spec in handlers]
    except BadHandler as error:
        raise BadSetting(f"the setting `handlers`: {error}") from None


def written(tuning: Tuning) -> str:
    """As it would be written in YAML, on one line."""
    return ", ".join(
        f"{name}: {{{', '.join(f'{option}: {value:g}' for option, value in options.items())}}}" for name, options in tuning
    )
