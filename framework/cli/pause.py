"""``workers pause`` and ``workers resume``: the broker's own pause of a topic or channel, for all who consume it."""

from __future__ import annotations

from collections.abc import Callable

import click

from framework import names
from framework.cli import options
from framework.cli.brokers import reach
from framework.cli.exit_codes import Exit, as_text
from framework.errors import WrongUse
from framework.settings import Settings
from framework.transports.kept import Pausable

_TEXT = """{} every TOPIC or TOPIC/CHANNEL at the broker, for all who consume it, whoever they are.

NSQ keeps a pause over a restart, of a channel or of a whole topic: a paused topic hands its channels nothing, so that their
messages stay in it. beanstalkd pauses a tube until it ends. Other brokers have no pause that is used here: pause the handlers
of a worker, with `workers ctl {}`.
"""


def _verb(name: str, *, paused: bool) -> click.Command:
    @click.argument("wanted", nargs=-1, required=True, metavar="TOPIC[/CHANNEL]...")
    @options.settings("brokers", "data_path", "connect_deadline", instead=options.GLANCE)
    def verb(wanted: tuple[str, ...], settings: Settings) -> int:
        for one in wanted:
            topic, slash, channel = one.partition("/")
            names.check("topic", topic)
            if slash:
                names.check("channel", channel)
        transports = reach(settings)
        for transport in transports:
            if not isinstance(transport, Pausable):
                raise WrongUse(f"this broker has no pause of its own: pause handlers of a worker, with `workers ctl {name}`")
        missing = 0
        for one in wanted:
            topic, _, channel = one.partition("/")
            nodes = set().union(*(it.pause(topic, channel, paused=paused) for it in transports if isinstance(it, Pausable)))
            if nodes:
                click.echo(f"{name}d {one} on {', '.join(sorted(nodes))}")
            else:
                click.echo(f"workers: {one}: it is on no node", err=True)
                missing += 1
        return Exit.INCOMPLETE if missing else Exit.CLEAN

    made: Callable[..., int] = verb
    text = _TEXT.format("Pause" if paused else "Resume", name)
    return click.command(name, help=text, epilog="\b\nExit codes:\n" + as_text())(made)


command = _verb("pause", paused=True)
resume = _verb("resume", paused=False)
