"""``workers history``: how messages ended, from the file that workers keep it in. It asks no broker, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from framework.cli import options
from framework.cli.dead.options import as_json
from framework.cli.dead.shown import json_line, printable
from framework.cli.exit_codes import Exit, as_text
from framework.cli.output import output
from framework.cli.tables import took
from framework.deadletters import moment
from framework.errors import WrongUse
from framework.history import OUTCOMES, search
from framework.settings import Settings

HEAD = f"{'STARTED':<24}  {'TOOK':>7}  {'OUTCOME':<10}  {'HANDLER':<24}  {'ID':<16}  {'#':>3}  EXCEPTION"


@click.command(epilog="\b\nExit codes:\n" + as_text())
@click.option("--id", "id_", default="", metavar="ID", help="Only deliveries of the message ID.")
@click.option("--handler", default="", metavar="NAME", help="Only of this handler: orders/billing, or with stars, 'orders/*'.")
@click.option("--outcome", default="", type=click.Choice(["", *OUTCOMES]), metavar="|".join(OUTCOMES), help="Only what ended so.")
@click.option("--exception", default="", metavar="TEXT", help="Only what failed by an exception with TEXT in class or words.")
@click.option("--since", metavar="TIME", help="Only what started since: 2h (ago), 2026-05-01, 2026-05-01T18:30.")
@click.option("--before", metavar="TIME", help="Only what started before; written as --since.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="No more than N.")
@as_json
@options.settings("history")
def command(id_: str, since: str | None, before: str | None, *, as_json: bool, settings: Settings, **filters: Any) -> int:
    """Show how messages ended, what started last first, from the file of the setting `history`.

    Workers may write it meanwhile. What ended in the last quarter of a second may not be there yet.
    """
    if settings.history is None:
        raise WrongUse("say which history: --history FILE, the one that `workers run --history FILE` writes")
    found = search(settings.history, id=id_, since=_time("--since", since), before=_time("--before", before), **filters)
    with output():
        if not as_json:
            click.echo(HEAD)
        for row in found:
            click.echo(json_line(row) if as_json else _line(row))
    return Exit.CLEAN


def _line(row: Mapping[str, Any]) -> str:
    when = datetime.fromtimestamp(row["started"], UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    failed = f"{row['exception']}: {row['words']}" if row["words"] else row["exception"]
    return printable(
        f"{when:<24}  {took(row['seconds']):>7}  {row['outcome']:<10}  {row['handler']:<24}  {row['id']:<16}  "
        f"{row['attempt']:>3}  {failed}".rstrip()
    )


def _time(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return moment(text).timestamp()
    except ValueError as error:
        raise WrongUse(f"{flag}: {text!r} {error}") from None
