"""``workers ctl``: shows and changes the handlers of a worker that runs, by its admin endpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from framework.admin.client import Worker
from framework.cli import ctl_dead, options
from framework.cli.dead import shown
from framework.cli.dead.options import as_json
from framework.cli.exit_codes import Exit, as_text
from framework.cli.output import output
from framework.cli.tables import TABLES, table
from framework.errors import WrongUse
from framework.settings import Settings

_EPILOG = "\b\nExit codes:\n" + as_text()
Command = Callable[..., Any]


def worker_at(settings: Settings) -> Worker:
    """Raises WrongUse where none is named."""
    if not settings.admin:
        raise WrongUse("name the worker, as `--admin 9464`: the address that it was started with")
    return Worker(settings.admin, settings.admin_token)


@click.group(epilog=_EPILOG)
def command() -> None:
    """Show what a running worker does, and change its handlers until it ends.

    Asks the endpoint that `workers run --admin ADDRESS` serves, and says $WORKERS_ADMIN_TOKEN where that is set. HANDLER is
    <topic>/<channel>.
    """


def _verb(name: str, text: str, function: Command) -> None:
    made = options.settings("admin")(function)
    command.add_command(click.command(name, short_help=text, help=text, epilog=_EPILOG)(made))


def _of_handlers(action: str, text: str) -> None:
    @click.argument("handlers", nargs=-1, metavar="[HANDLER]...")
    @click.option("--all", "all_", is_flag=True, help="All handlers of the worker.")
    def verb(handlers: tuple[str, ...], all_: bool, settings: Settings) -> int:
        if bool(handlers) == all_:
            raise WrongUse(f"{action}: name handlers, as orders/billing, or say --all")
        worker = worker_at(settings)
        for name in handlers or (None,):
            _act(worker, {"action": action, "handler": name})
        return Exit.CLEAN

    _verb(action, text, verb)


def _of_number(action: str, text: str) -> None:
    @click.argument("handler", metavar="HANDLER")
    @click.argument("number", type=int, metavar="N")
    def verb(handler: str, number: int, settings: Settings) -> int:
        _act(worker_at(settings), {"action": action, "handler": handler, "value": number})
        return Exit.CLEAN

    _verb(action.replace("_", "-"), text, verb)


def _act(worker: Worker, action: dict[str, Any]) -> None:
    found = worker.post("/api/actions", action)
    click.echo(found["done"] + ("; not yet: its hub is blocked, and heeds it when it turns" if found.get("pending") else ""))


def _show(part: str, text: str) -> None:
    @click.argument("handler", required=False, metavar="[HANDLER]")
    @as_json
    def verb(handler: str | None, as_json: bool, settings: Settings) -> int:
        query = {"handler": handler} if handler else {}
        rows: Sequence[dict[str, Any]] = worker_at(settings).get(f"/api/{part}", **query)
        if handler and part == "dead":
            rows = [row for row in rows if handler in (row["handler"], row["dead_topic"])]
        with output():
            for line in map(shown.json_line, rows) if as_json else table(part, rows):
                click.echo(line)
        return Exit.CLEAN

    _verb(part, text, verb)


_of_handlers("pause", "Ask for no more messages; what has come is handled.")
_of_handlers("resume", "End a pause or a drain.")
_of_handlers("drain", "Pause, and give back what has not been started; the worker goes on.")
_of_number("max_in_flight", "Have at most N messages received and not settled, in each process.")
_of_number("concurrency", "Have at most N calls run at once, in each process.")
command.add_command(ctl_dead.replay)
command.add_command(ctl_dead.purge)
for _part, (_text, _) in TABLES.items():
    _show(_part, _text)
