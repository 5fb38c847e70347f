"""Click options from the table of settings, so that a setting is named, typed and explained in one place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from framework.errors import WrongUse
from framework.settings import TABLE, Setting, load

Command = Callable[..., Any]


GLANCE = {"connect_deadline": 5.0}
"""For a verb that only looks: its user waits for it."""


def settings(
    *names: str, again: bool = False, instead: Mapping[str, Any] | None = None
) -> Callable[[Command], Command]:  # fmt: skip
    """Give a verb the flags of the settings ``names`` (none named: of all) and --config.

    The verb gets one argument ``settings`` in their place, loaded and checked; with ``again`` also ``load``, which does so anew.
    ``instead``: defaults of this verb's own.
    """
    rows = [TABLE[name] for name in names or TABLE if TABLE[name].flag]

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def with_settings(*args: Any, config: Path | None, **arguments: Any) -> Any:
            flags = {row.name: arguments.pop(row.name) for row in rows}
            read = functools.partial(load, flags, config, defaults=instead)
            more = {"load": read} if again else {}
            return function(*args, settings=read(), **more, **arguments)

        wrapped: Command = with_settings
        for row in reversed(rows):
            wrapped = _option(row, (instead or {}).get(row.name))(wrapped)
        return _CONFIG(wrapped)

    return decorate


_CONFIG = click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="A YAML file with settings; see docs/settings.md."
)


def address(text: str) -> str:
    """Of an admin endpoint, as the setting ``admin`` would be. Raises WrongUse."""
    try:
        return str(TABLE["admin"].parse(text))
    except ValueError as error:
        raise WrongUse(f"{text!r} {error}") from None


def without_flag() -> str:
    """For --help: the settings that the command line cannot have, because other users of the machine could read it."""
    rows = (row for row in TABLE.values() if not row.flag)
    return "\n".join(f"  {row.name}: {row.help}  [${row.env}; default: {row.shown_default}]" for row in rows)


def _option(row: Setting, default: float | None = None) -> Callable[[Command], Command]:
    # Values stay text here: settings.py parses and checks those of every source alike.
    text = f"{row.help}  [${row.env}; default: {row.shown_default if default is None else f'{default:g}s'}]"
    if row.switch:
        return click.option(row.flag, row.name, is_flag=True, default=None, help=text)
    return click.option(row.flag, row.name, multiple=row.repeatable, metavar=row.metavar, help=text)
