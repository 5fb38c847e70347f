"""``workers top``: the handlers of workers that run, live in a terminal, by their admin endpoints."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from framework.admin.client import Worker
from framework.admin.snapshot import Snapshot, merged
from framework.cli import options
from framework.cli.exit_codes import Exit, as_text
from framework.cli.output import output
from framework.cli.tables import TABLES, Row, backlog, ended, state, table
from framework.errors import FrameworkError, WrongUse
from framework.settings import Settings

SORTS: dict[str, Callable[[Row], Any]] = {
    "rate": lambda row: -ended(row),
    "backlog": lambda row: -(backlog(row) or 0),
    "running": lambda row: -row["running"],
    "dead": lambda row: -row["counts"]["dead"],
    "name": lambda row: row["handler"],
}
CALLS = 8
"""Calls that are shown, those that run longest."""


@click.command(epilog="\b\nExit codes:\n" + as_text())
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]...")
@click.option(
    "--every", type=click.FloatRange(min=0.2), default=1.0, show_default=True, metavar="SECONDS", help="How often to ask."
)
@click.option("--sort", type=click.Choice(list(SORTS)), default="rate", show_default=True, help="What comes first.")
@click.option("--once", is_flag=True, help="Show it once, as text; also where the output is no terminal.")
@options.settings("admin")
def command(*, addresses: tuple[str, ...], every: float, sort: str, once: bool, settings: Settings) -> int:
    """Show the handlers of the workers at ADDRESS..., of all together: rates, what runs, backlogs, pauses.

    ADDRESS is what each was started with as --admin: a port, host:port or a path. A worker that does not answer is named.
    Keys: q ends it, s sorts by another column.
    """
    workers = [Worker(options.address(one), settings.admin_token) for one in addresses]
    workers = workers or [Worker(one, settings.admin_token) for one in [settings.admin] if one]
    if not workers:
        raise WrongUse("name a worker, as `workers top 9464`: the address that it was started with")
    view = View(workers, sort)
    if once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        with output():
            view.look(strict=True)
            for line in view.lines():
                click.echo(line)
        return Exit.CLEAN
    _live(view, every)
    return Exit.CLEAN


def _live(view: View, every: float) -> None:
    console = Console()
    view.look(strict=True)
    with _keys() as pressed, Live(view.drawn(console.height), console=console, screen=True, auto_refresh=False) as live:
        asked = time.monotonic()
        while (key := pressed(max(0.0, asked + every - time.monotonic()))) != "q":
            if key == "s":
                view.sort = _after(view.sort)
            if time.monotonic() - asked >= every:
                asked = time.monotonic()
                view.look()
            live.update(view.drawn(console.height), refresh=True)


class View:
    """What ``workers`` said last."""

    def __init__(self, workers: Sequence[Worker], sort: str) -> None:
        self.sort = sort
        self._workers = workers
        self._snapshot: Snapshot = merged([])
        self._silent: list[str] = []

    def look(self, *, strict: bool = False) -> None:
        """Ask each. ``strict``: raise what the first that does not answer raises, where none does."""
        answers, self._silent = [], []
        first: FrameworkError | None = None
        for worker in self._workers:
            try:
                answers.append(_state_of(worker))
            except FrameworkError as error:
                first = first or error
                self._silent.append(str(error))
        if strict and first is not None and not answers:
            raise first
        self._snapshot = merged(answers)

    def _rows(self) -> list[Row]:
        rows = self._snapshot["handlers"]
        return sorted(sorted(rows, key=SORTS["name"]), key=SORTS[self.sort])

    def _sums(self) -> str:
        found, rows = self._snapshot, self._snapshot["handlers"]
        ready = sum(one["state"] == "ready" for one in found["processes"])
        kept = [count for count in map(backlog, rows) if count is not None]
        return (
            f"{ready} of {len(found['processes'])} processes ready   {len(rows)} handlers   {sum(map(ended, rows)):.1f}/s   "
            f"{sum(row['running'] for row in rows)} running   {sum(kept) if kept else '-'} backlog   sorted by {self.sort}"
        )

    def lines(self) -> Iterator[str]:
        """As text."""
        yield self._sums()
        yield from self._silent
        yield ""
        yield from table("handlers", self._rows())
        if self._snapshot["running"]:
            yield ""
            yield from table("running", self._snapshot["running"][:CALLS])

    def drawn(self, height: int) -> Group:
        """For a terminal of ``height`` lines."""
        calls = self._snapshot["running"][:CALLS]
        room = max(3, height - len(self._silent) - (len(calls) + 3 if calls else 0) - 4)
        parts: list[Any] = [Text(self._sums(), style="bold", no_wrap=True, overflow="ellipsis")]
        parts += [Text(words, style="red") for words in self._silent]
        parts.append(_drawn("handlers", self._rows()[:room]))
        if calls:
            parts += [Text(), _drawn("running", calls)]
        return Group(*parts)


def _drawn(part: str, rows: Sequence[Row]) -> Table:
    _, columns = TABLES[part]
    made = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim")
    for head in columns:
        wide = head in ("STATE", "WHERE")
        made.add_column(
            head.lstrip(">"), justify="right" if head.startswith(">") else "left", no_wrap=True, overflow="ellipsis",
            ratio=1 if wide else None,
        )  # fmt: skip
    for row in rows:
        made.add_row(*(Text(column(row), style=_style(head, row)) for head, column in columns.items()))
    return made


def _style(head: str, row: Row) -> str:
    if head == "STATE":
        return "green" if state(row) == "ok" else "red"
    if head in (">DEAD", ">LOST") and (row["counts"]["dead"] if head == ">DEAD" else row["counts"]["lease_lost"]):
        return "red"
    return ""


def _state_of(worker: Worker) -> Snapshot:
    """Its snapshot, with what the brokers keep for its handlers."""
    parts = {part: worker.get(f"/api/{part}") for part in ("processes", "handlers", "running")}
    return {"at": time.time(), "failures": [], "connections": [], **parts}


def _after(sort: str) -> str:
    names = list(SORTS)
    return names[(names.index(sort) + 1) % len(names)]


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """``pressed(seconds)`` waits so long for a key; empty for none. The terminal is as it was at the end."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def pressed(seconds: float) -> str:
        readable, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if readable else ""

    try:
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
