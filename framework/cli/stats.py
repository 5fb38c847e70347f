"""``workers stats``: how many messages wait, in every topic and channel of the brokers. It takes none and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from framework import names
from framework.cli import options
from framework.cli.brokers import reach
from framework.cli.dead import desk, shown
from framework.cli.dead.options import as_json
from framework.cli.exit_codes import Exit, as_text
from framework.settings import Settings
from framework.transports.contract import Transport


@click.command(epilog="\b\nExit codes:\n" + as_text())
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@as_json
@options.settings("brokers", "data_path", "connect_deadline")
def command(topics: tuple[str, ...], as_json: bool, settings: Settings) -> int:
    """Count what each channel of every topic, or of each TOPIC, has still to finish: waiting, deferred and in flight.

    The counts are the brokers' own; one that cannot be asked is an error, not a smaller number. What still waits in a
    topic itself counts for each of its channels. A topic without a channel shows what the first one would get.
    A TOPIC that no broker has is said on stderr, and the exit code is 4.
    """
    for name in topics:
        names.check("topic", name)
    there = [(transport, transport.topics()) for transport in reach(settings)]
    with desk.output():
        for transport, known in there:
            for topic in sorted(known.intersection(topics) if topics else known):
                for channel, nodes in _counts(transport, topic):
                    click.echo(_row(topic, channel, nodes, as_json))
        missing = _say_what_is_not_there(topics, [known for _, known in there])
    return Exit.INCOMPLETE if missing else Exit.CLEAN


def _counts(transport: Transport, topic: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Each channel, or an empty one where the topic has none, with the messages on every node."""
    channels = transport.channels(topic) if transport.capabilities.fan_out else set()
    for channel in sorted(channels) or [""]:
        yield channel, transport.backlog(topic, channel)


def _row(topic: str, channel: str, nodes: dict[str, int], as_json: bool) -> str:
    count = sum(nodes.values())
    if as_json:
        return shown.json_line({"topic": topic, "channel": channel, "messages": count, "nodes": nodes})
    where = f" on {len(nodes)} nodes" if len(nodes) > 1 else ""
    return f"{count:>8}  {topic}{f'/{channel}' if channel else ''}{where}"


def _say_what_is_not_there(topics: Sequence[str], known: Sequence[set[str]]) -> list[str]:
    missing = [name for name in topics if not any(name in some for some in known)]
    for name in missing:
        click.echo(f"workers: {name}: there is no such topic", err=True)
    return missing
