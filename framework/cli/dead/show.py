"""``workers dead show``: everything that is known of one dead letter."""

from __future__ import annotations

import click

from framework.cli import options
from framework.cli.brokers import Absent
from framework.cli.dead import shown
from framework.cli.dead import topics as dead_topics
from framework.cli.dead.options import as_json, channel
from framework.cli.exit_codes import Exit, as_text
from framework.cli.output import output
from framework.cli.signals import Interrupted, interrupting
from framework.deadletters import DeadTopic, Selection, Sweep
from framework.errors import WrongUse
from framework.settings import Settings


@click.command(short_help="Print all that is known of one dead letter.", epilog="\b\nExit codes:\n" + as_text())
@click.argument("id_", metavar="ID")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@channel
@as_json
@options.settings("brokers", "data_path", "connect_deadline")
def show(*, id_: str, names: tuple[str, ...], channel: str, as_json: bool, settings: Settings) -> int:
    """Print the letter of the message ID: where it was, why and when it died, its traceback and its body.

    Looks in the dead letter topics NAME (<topic>/<channel>, or the topic itself), without any in all. Nothing is consumed.
    A body that is no text is shown as a hex dump.
    """
    absent = Absent()
    topics = dead_topics.named(names, settings, channel, absent) if names else dead_topics.every(settings, channel, absent)
    found = 0
    try:
        with interrupting(), output():
            found = sum(_show(topic, id_, as_json) for topic in topics)
    except Interrupted as signal:
        return signal.exit_code
    if not found:
        where = ", ".join(topic.name for topic in topics) or "any dead letter topic, there is none"
        if absent.nodes:
            click.echo(f"workers: no letter has the id {id_!r} in {where}, as far as can be seen", err=True)
            return Exit.INCOMPLETE
        raise WrongUse(f"no letter has the id {id_!r} in {where}: `workers dead list NAME` shows those there are")
    return Exit.CLEAN


def _show(topic: DeadTopic, id_: str, as_json: bool) -> int:
    found = 0
    with Sweep(topic) as sweep:
        for letter in sweep.chosen(Selection(ids={id_})):
            if as_json:
                click.echo(shown.json_line(shown.as_dict(letter, topic.name)))
            else:
                click.echo("\n".join(["", *shown.page(letter, topic.name)][0 if found else 1 :]))
            found += 1
    if sweep.cut_short:
        click.echo(f"workers: {topic.name}: {sweep.cut_short}", err=True)
    return found
