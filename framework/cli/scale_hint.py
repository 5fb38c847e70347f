"""``workers scale-hint``: one number for an autoscaler: what a channel has to do now."""

from __future__ import annotations

import click

from framework import names
from framework.cli import options
from framework.cli.brokers import reach
from framework.cli.exit_codes import Exit, as_text
from framework.errors import WrongUse
from framework.middleware.dead_letter import topic_name
from framework.middleware.envelope import LATER
from framework.settings import Settings
from framework.transports.kept import Inspectable, kept_of, together


@click.command(epilog="\b\nExit codes:\n" + as_text())
@click.argument("channel", metavar="TOPIC/CHANNEL")
@options.settings("brokers", "data_path", "connect_deadline", instead=options.GLANCE)
def command(channel: str, settings: Settings) -> int:
    """Print how many messages of TOPIC/CHANNEL are to be handled now: what waits and is due, and what is in flight.

    What is in flight counts, so that long calls do not have their workers taken away; what is deferred does not count until
    it is due. A running worker answers the same at /scale?handler=TOPIC/CHANNEL.
    """
    topic, slash, name = channel.partition("/")
    names.check("topic", topic)
    if not slash:
        raise WrongUse(f"{channel!r} names no channel: write topic/channel")
    names.check("channel", name)
    transports, later = reach(settings), topic_name(topic, name, LATER)
    kept = [together(kept_of(transport, topic, name)) for transport in transports]
    due = [together(kept_of(transport, later, name)).waiting for transport in transports if isinstance(transport, Inspectable)]
    click.echo(f"{sum(one.waiting + one.in_flight for one in kept) + sum(due)}")
    return Exit.CLEAN
