"""``workers docs``: what the handlers of an app consume, for people and tools that do not read Python."""

from __future__ import annotations

import click
import msgspec
import yaml

from framework.asyncapi import document
from framework.cli import options
from framework.cli.exit_codes import Exit, as_text
from framework.modules import import_handlers
from framework.settings import Settings


@click.command(epilog="\b\nExit codes:\n" + as_text())
@click.argument("modules", nargs=-1, required=True, metavar="MODULE...")
@click.option("--asyncapi", is_flag=True, help="As AsyncAPI 3, which is all that there is so far, and the default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of YAML.")
@click.option("--title", metavar="TEXT", help="What the document calls the app (its first module).")
@click.option("--app-version", metavar="TEXT", default="0", help="The version of the app in the document (0).")
@options.settings("brokers")
def command(
    modules: tuple[str, ...], *, asyncapi: bool, as_json: bool, title: str | None, app_version: str, settings: Settings
) -> int:
    """Print an AsyncAPI 3 document of the handlers that `workers run MODULE...` would run.

    A topic is a channel in it, and a handler an operation that receives. The schema of a payload is made from the
    annotation of the handler's argument, its words from the docstrings. Brokers are named without their passwords;
    none of them is asked.
    """
    handlers = import_handlers(modules)
    made = document(title or modules[0], app_version, handlers, settings.brokers)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(made), indent=2))
    else:
        click.echo(yaml.safe_dump(msgspec.to_builtins(made), sort_keys=False, allow_unicode=True, width=100), nl=False)
    return Exit.CLEAN
