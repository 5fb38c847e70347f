"""``workers dead``: the messages that handlers gave up, looked at, replayed and purged; one verb a file."""

from __future__ import annotations

import click

from framework.cli.dead.list import list_letters
from framework.cli.dead.purge import purge
from framework.cli.dead.replay import replay
from framework.cli.dead.show import show


@click.group()
def command() -> None:
    """Look at dead letters, and replay or purge them.

    A message that its handler rejected, or that ran out of attempts, is in the topic <topic>.<channel>.dead. Name that
    topic, or <topic>/<channel>. What a verb reads it gives back at once, but for what it replays or purges.
    """


for verb in (list_letters, show, replay, purge):
    command.add_command(verb)
