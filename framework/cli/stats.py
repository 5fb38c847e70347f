"""``workers stats``: how many messages wait, in every topic and channel of the brokers, and why. It takes none."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from framework import names
from framework.admin.client import Worker
from framework.cli import options, why
from framework.cli.brokers import reach
from framework.cli.dead import shown
from framework.cli.dead.options import as_json
from framework.cli.exit_codes import Exit, as_text
from framework.cli.output import output
from framework.cli.signals import Interrupted, interrupting
from framework.cli.tables import aligned
from framework.errors import FrameworkError
from framework.settings import Settings
from framework.transports.contract import Transport
from framework.transports.kept import Kept, kept_of, together

BETWEEN = 1.0
"""Seconds between the two counts that rates are of."""
CLEAR = "\x1b[2J\x1b[H"
Key = tuple[str, str]
"""Topic and channel."""


@dataclass
class Count:
    """What there is at one moment."""

    at: float
    topics: set[str] = field(default_factory=set)
    channels: dict[Key, dict[str, Kept]] = field(default_factory=dict)


@click.command(epilog="\b\nExit codes:\n" + as_text())
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@as_json
@click.option("--why", "explain", is_flag=True, help="Tell waiting, in flight and deferred apart, with rates, and why.")
@click.option("--watch", type=click.FloatRange(min=0.1), metavar="SECONDS", help="As --why, again and again, until interrupted.")
@click.option("--fail-above", type=click.IntRange(min=0), metavar="N", help="Exit with 5 where a channel has more messages.")
@options.settings("brokers", "data_path", "connect_deadline", "admin", instead=options.GLANCE)
def command(
    *, topics: tuple[str, ...], as_json: bool, explain: bool, watch: float | None, fail_above: int | None, settings: Settings
) -> int:
    """Count what each channel of every topic, or of each TOPIC, has still to finish: waiting, deferred and in flight.

    The counts are the brokers' own; one that cannot be asked is an error, not a smaller number. What still waits in a
    topic itself counts for each of its channels. A topic without a channel shows what the first one would get.
    A TOPIC that no broker has is said on stderr, and the exit code is 4.

    --why adds whether anybody consumes, and how fast; with --admin what the worker there says: its pauses and backoff,
    and the age of the oldest message.
    """
    for name in topics:
        names.check("topic", name)
    look = Look(reach(settings), topics, settings, as_json=as_json)
    try:
        with interrupting(), output():
            if watch:
                look.again_and_again(watch)
            found = look.explained() if explain else look.counted()
    except Interrupted as signal:
        return Exit.CLEAN if watch else signal.exit_code
    if fail_above is not None and any(together(nodes).total > fail_above for nodes in found.channels.values()):
        return Exit.ABOVE
    return Exit.INCOMPLETE if look.say_what_is_not_there(found) else Exit.CLEAN


class Look:
    """At what the brokers of ``transports`` keep, of ``topics`` or of all."""

    def __init__(self, transports: Sequence[Transport], topics: Sequence[str], settings: Settings, *, as_json: bool) -> None:
        self._transports = transports
        self._topics = topics
        self._worker = Worker(settings.admin, settings.admin_token) if settings.admin else None
        self._complained = False
        self._as_json = as_json

    def counted(self) -> Count:
        """One count, shown."""
        found = self._count()
        for (topic, channel), nodes in found.channels.items():
            click.echo(_row(topic, channel, {node: one.total for node, one in nodes.items()}, self._as_json))
        return found

    def explained(self, before: Count | None = None, *, clear: bool = False) -> Count:
        """A count with rates since ``before``, shown."""
        if before is None:
            before = self._count()
            time.sleep(BETWEEN)
        found, workers = self._count(), self._handlers()
        lines = list(self._lines(before, found, workers))
        click.echo((CLEAR if clear else "") + "\n".join(lines))
        return found

    def again_and_again(self, every: float) -> None:
        clear = not self._as_json and sys.stdout.isatty()
        before = self._count()
        while True:
            time.sleep(every)
            before = self.explained(before, clear=clear)

    def say_what_is_not_there(self, found: Count) -> list[str]:
        missing = [name for name in self._topics if name not in found.topics]
        for name in missing:
            click.echo(f"workers: {name}: there is no such topic", err=True)
        return missing

    def _count(self) -> Count:
        made = Count(time.monotonic())
        for transport in self._transports:
            known = transport.topics()
            made.topics |= known
            for topic in sorted(known.intersection(self._topics) if self._topics else known):
                channels = transport.channels(topic) if transport.capabilities.fan_out else set()
                for channel in sorted(channels) or [""]:
                    made.channels.setdefault((topic, channel), {}).update(kept_of(transport, topic, channel))
        return made

    def _lines(self, before: Count, now: Count, workers: Mapping[str, Any]) -> Iterator[str]:
        rows = []
        for (topic, channel), nodes in now.channels.items():
            kept, name = together(nodes), f"{topic}/{channel}" if channel else topic
            then = before.channels.get((topic, channel))
            speed = why.rates(together(then), kept, now.at - before.at) if then else None
            worker = workers.get(name) if channel else next((row for row in workers.values() if row["topic"] == topic), None)
            if self._as_json:
                counts = {node: one.total for node, one in nodes.items()}
                yield shown.json_line(_as_dict(topic, channel, counts) | why.as_dict(kept, speed, worker))
            else:
                rows.append(why.cells(name, kept, speed, worker))
        if not self._as_json:
            yield from aligned(why.HEAD, rows)

    def _handlers(self) -> dict[str, Any]:
        """What the worker says of its handlers; nothing where none answers, which is said once."""
        if self._worker is None:
            return {}
        try:
            return {row["handler"]: row for row in self._worker.get("/api/handlers")}
        except FrameworkError as error:
            if not self._complained:
                self._complained = True
                click.echo(f"workers: {error}", err=True)
            return {}


def _row(topic: str, channel: str, nodes: dict[str, int], as_json: bool) -> str:
    if as_json:
        return shown.json_line(_as_dict(topic, channel, nodes))
    where = f" on {len(nodes)} nodes" if len(nodes) > 1 else ""
    return f"{sum(nodes.values()):>8}  {topic}{f'/{channel}' if channel else ''}{where}"


def _as_dict(topic: str, channel: str, nodes: dict[str, int]) -> dict[str, Any]:
    return {"topic": topic, "channel": channel, "messages": sum(nodes.values()), "nodes": nodes}
