"""``workers dead list``: which dead letter topics there are and how many letters each has, or the letters of some."""

from __future__ import annotations

import click

from framework.cli import options
from framework.cli.brokers import Absent
from framework.cli.dead import shown
from framework.cli.dead import topics as dead_topics
from framework.cli.dead.options import as_json, channel, filters
from framework.cli.exit_codes import Exit, as_text
from framework.cli.output import output
from framework.cli.signals import Interrupted, interrupting
from framework.deadletters import DeadTopic, Selection, Sweep, of_handler
from framework.errors import WrongUse
from framework.modules import import_handlers
from framework.settings import Settings


@click.command("list", short_help="Count dead letters, or list those of a topic.", epilog="\b\nExit codes:\n" + as_text())
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "-m", "--module", "modules", multiple=True, metavar="MODULE", help="Count for the handlers of MODULE; may be repeated."
)
@filters(limit=100)
@channel
@as_json
@options.settings("brokers", "data_path", "connect_deadline")
def list_letters(
    *, names: tuple[str, ...], modules: tuple[str, ...], selection: Selection, channel: str, as_json: bool, settings: Settings
) -> int:
    """Count the letters of every dead letter topic; with NAME, list the letters in it.

    NAME is <topic>/<channel>, or the dead letter topic itself. Nothing is consumed. While some nodes are down, what the
    others keep is shown, those are named, and the exit code is 4.
    """
    if names and modules:
        raise WrongUse("give names to list letters, or --module to count them, not both")
    if not names:
        if selection != Selection(limit=selection.limit):
            raise WrongUse("letters are chosen from a dead letter topic: name one, as `workers dead list orders/billing`")
        return _count(modules, channel, as_json, settings)
    absent = Absent()
    topics = dead_topics.named(names, settings, channel, absent)
    for missing in dead_topics.missing(names, topics):
        _say(f"0 letters in {missing}: there is no such topic", as_json)
    try:
        with interrupting(), output():
            return max([_ending(absent), *(_list(topic, selection, as_json) for topic in topics)])
    except Interrupted as signal:
        return signal.exit_code


def _count(modules: tuple[str, ...], channel: str, as_json: bool, settings: Settings) -> int:
    """How many letters each topic has; with ``modules``, also those that have none."""
    wanted = [of_handler(spec) for spec in import_handlers(modules)] if modules else None
    counts = dict.fromkeys(wanted or (), 0)
    elsewhere, absent = {}, Absent()
    for topic in dead_topics.on_brokers(settings, wanted, channel, absent):
        counts[topic.name] = counts.get(topic.name, 0) + topic.count
        elsewhere[topic.name] = "" if topic.channel == channel else topic.channel
    with output():
        for name, count in counts.items():
            where = elsewhere.get(name) or channel
            if as_json:
                click.echo(shown.json_line({"dead_topic": name, "channel": where, "letters": count}))
            else:
                click.echo(f"{count:>8}  {name}{f' (in its channel {where})' if where != channel else ''}")
        _say(f"{_letters(sum(counts.values()))} in {_topics(len(counts))}", as_json)
    return _ending(absent)


def _ending(absent: Absent) -> Exit:
    return Exit.INCOMPLETE if absent.nodes else Exit.CLEAN


def _list(topic: DeadTopic, selection: Selection, as_json: bool) -> Exit:
    count = 0
    with Sweep(topic) as sweep:
        for letter in sweep.chosen(selection):
            if not (count or as_json):
                click.echo(shown.HEAD)
            count += 1
            click.echo(shown.json_line(shown.as_dict(letter, topic.name)) if as_json else shown.row(letter))
    _say(f"{count} of {_letters(topic.count)} in {topic.name}", as_json)
    if sweep.cut_short:
        click.echo(f"workers: {topic.name}: {sweep.cut_short}", err=True)
        return Exit.INCOMPLETE
    return Exit.CLEAN


def _say(words: str, as_json: bool) -> None:
    """The sum below a table; machines count for themselves."""
    click.echo(words, err=as_json)


def _letters(count: int) -> str:
    return f"{count} letter{'' if count == 1 else 's'}"


def _topics(count: int) -> str:
    return f"{count} dead letter topic{'' if count == 1 else 's'}"
