"""The options that the verbs of ``workers dead`` share, and what their texts mean; they open nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from framework.deadletters import CHANNEL, Selection, moment
from framework.errors import WrongUse

Command = Callable[..., Any]


def filters(*, limit: int | None = None) -> Callable[[Command], Command]:
    """Give a verb the options that choose letters; it gets them as ``selection``. ``limit``: the default of --limit."""

    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def with_selection(
            *args: Any, ids: tuple[str, ...], reason: str, since: str | None, before: str | None, limit: int | None, **rest: Any
        ) -> Any:
            selection = Selection(frozenset(ids), reason, _time("--since", since), _time("--before", before), limit)
            return function(*args, selection=selection, **rest)

        wrapped: Command = with_selection
        for option in reversed(_filters(limit)):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def _filters(limit: int | None) -> list[Callable[[Command], Command]]:
    return [
        click.option("--id", "ids", multiple=True, metavar="ID", help="Only letters of the message ID; may be repeated."),
        click.option("--reason", default="", metavar="TEXT", help="Only letters whose reason contains TEXT, in any case."),
        click.option("--since", metavar="TIME", help="Only letters that died since: 2h (ago), 2026-05-01, 2026-05-01T18:30."),
        click.option("--before", metavar="TIME", help="Only letters that died before; written as --since."),
        click.option(
            "--limit", type=click.IntRange(min=1), default=limit, show_default=limit is not None, metavar="N",
            help="No more than N letters.",
        ),
    ]  # fmt: skip


def _time(flag: str, text: str | None) -> datetime | None:
    """An ISO date or time (UTC unless it says otherwise), or so long ago. Raises WrongUse."""
    if text is None:
        return None
    try:
        return moment(text)
    except ValueError as error:
        raise WrongUse(f"{flag}: {text!r} {error}") from None


channel = click.option(
    "--channel",
    default=CHANNEL,
    show_default=True,
    metavar="NAME",
    help="The channel of the dead letter topic that keeps the letters, where the broker has channels.",
)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, an object a line.")

dry_run = click.option("--dry-run", is_flag=True, help="Only count what would be done.")
