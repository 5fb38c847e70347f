"""The verbs of ``workers ctl`` for dead letters: as ``workers dead`` does it, by a worker that can reach the brokers."""

from __future__ import annotations

from typing import Any

import click

from framework.admin.client import Worker
from framework.cli import options
from framework.cli.dead.options import dry_run
from framework.cli.exit_codes import Exit, as_text
from framework.errors import WrongUse
from framework.settings import Settings

PATIENCE = 600.0
"""Seconds that a replay or a purge may take."""
_EPILOG = "\b\nExit codes:\n" + as_text()
_FILTERS = (
    click.option("--id", "ids", multiple=True, metavar="ID", help="Only letters of the message ID; may be repeated."),
    click.option("--reason", default="", metavar="TEXT", help="Only letters whose reason contains TEXT, in any case."),
    click.option("--since", default="", metavar="TIME", help="Only letters that died since: 2h (ago), 2026-05-01."),
    click.option("--before", default="", metavar="TIME", help="Only letters that died before; written as --since."),
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="No more than N letters."),
)


def _filtered(function: Any) -> Any:
    for option in reversed(_FILTERS):
        function = option(function)
    return function


def _worker(settings: Settings) -> Worker:
    if not settings.admin:
        raise WrongUse("name the worker, as `--admin 9464`: the address that it was started with")
    return Worker(settings.admin, settings.admin_token)


def _said(settings: Settings, path: str, asked: dict[str, Any]) -> Any:
    return _worker(settings).post(path, {name: value for name, value in asked.items() if value}, timeout=PATIENCE)


@click.command(short_help="Publish dead letters to where they came from.", epilog=_EPILOG)
@click.argument("name", metavar="NAME")
@_filtered
@click.option("--to", default="", metavar="TOPIC", help="Publish to TOPIC, not to the topic that each message came from.")
@click.option("--all-channels", is_flag=True, help="Replay also where other channels of the topic get the messages once more.")
@dry_run
@options.settings("admin")
def replay(*, settings: Settings, **asked: Any) -> int:
    """Publish the dead letters of NAME (<topic>/<channel>) that fit all that is given again."""
    done = _said(settings, "/api/dead/replay", asked)
    would, to = "would replay" if done["dry_run"] else "replayed", ", ".join(done["to"]) or "nowhere"
    why = f" ({done['why']})" if done["why"] else ""
    click.echo(f"{would} {done['replayed']} letters to {to}; {done['kept']} kept, {done['failed']} failed{why}")
    return Exit.INCOMPLETE if done["failed"] or done["why"] else Exit.CLEAN


@click.command(short_help="Delete dead letters for good.", epilog=_EPILOG)
@click.argument("name", metavar="NAME")
@_filtered
@click.option("--all", "all", is_flag=True, help="All of them; needed where nothing is chosen.")
@dry_run
@options.settings("admin")
def purge(*, settings: Settings, **asked: Any) -> int:
    """Delete the dead letters of NAME (<topic>/<channel>) that fit all that is given, for good. It does not ask."""
    done = _said(settings, "/api/dead/purge", asked)
    would = "would purge" if done["dry_run"] else "purged"
    click.echo(f"{would} {done['purged']} letters; {done['kept']} kept")
    return Exit.INCOMPLETE if done["why"] else Exit.CLEAN
