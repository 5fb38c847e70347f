"""``workers dead purge``: dead letters are deleted for good, and counted."""

from __future__ import annotations

import sys

import click

from framework.cli import options
from framework.cli.dead import shown
from framework.cli.dead import topics as dead_topics
from framework.cli.dead.options import as_json, channel, dry_run, filters
from framework.cli.exit_codes import Exit, as_text
from framework.cli.signals import Interrupted, interrupting
from framework.deadletters import DeadTopic, Selection, Sweep
from framework.errors import BrokerUnreachable, WrongUse
from framework.settings import Settings


@click.command(short_help="Delete dead letters for good.", epilog="\b\nExit codes:\n" + as_text())
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@filters()
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run
@channel
@as_json
@options.settings("brokers", "data_path", "connect_deadline")
def purge(
    *, names: tuple[str, ...], selection: Selection, yes: bool, dry_run: bool, channel: str, as_json: bool, settings: Settings
) -> int:
    """Delete the letters of the dead letter topics NAME for good: those that fit all that is given, without any all.

    NAME is <topic>/<channel>, or the dead letter topic itself. Asks before it does, unless told --yes.
    """
    if not (yes or dry_run or (sys.stdin and sys.stdin.isatty())):
        raise WrongUse("what is purged is gone for good: add --yes, or --dry-run to see how many letters it would be")
    topics = dead_topics.named(names, settings, channel)
    for missing in dead_topics.missing(names, topics):
        click.echo(f"0 letters in {missing}: there is no such topic", err=as_json)
    agreed = [topic for topic in topics if yes or dry_run or _confirm(topic, selection)]
    return max((Purging(topic, dry_run, as_json).run(selection) for topic in agreed), default=Exit.CLEAN)


def _confirm(topic: DeadTopic, selection: Selection) -> bool:
    which = "all" if selection == Selection() else "the chosen ones of the"
    return click.confirm(f"Delete {which} {topic.count} letters of {topic.name}?", err=True)


class Purging:
    """The purge of one topic, and its counts."""

    def __init__(self, topic: DeadTopic, dry_run: bool, as_json: bool) -> None:
        self._topic = topic
        self._dry_run = dry_run
        self._as_json = as_json
        self._chosen = 0
        self._sweep = Sweep(topic)

    def run(self, selection: Selection) -> int:
        """Raises BrokerUnreachable, with the counts so far in it."""
        try:
            with interrupting(), self._sweep:
                for letter in self._sweep.chosen(selection):
                    self._chosen += 1
                    if not self._dry_run:
                        self._sweep.take(letter)
        except Interrupted as signal:
            click.echo(f"workers: {signal} came", err=True)
            self._report()
            return signal.exit_code
        except BrokerUnreachable as error:
            raise BrokerUnreachable(f"{error}; {self._words()}") from error
        self._report()
        return Exit.INCOMPLETE if self._sweep.cut_short or self._sweep.left_behind else Exit.CLEAN

    @property
    def _purged(self) -> int:
        return 0 if self._dry_run else self._chosen - self._sweep.left_behind

    def _words(self) -> str:
        topic, behind = self._topic, self._sweep.left_behind
        if self._dry_run:
            return f"would purge {self._chosen} of {topic.count} letters of {topic.name}"
        lost = f"; of {behind} more it is not known" if behind else ""
        return f"purged {self._purged} of {topic.count} letters of {topic.name}; {topic.count - self._chosen} kept{lost}"

    def _report(self) -> None:
        if self._as_json:
            counts = {"purged": self._purged, "chosen": self._chosen, "kept": self._topic.count - self._purged}
            click.echo(shown.json_line({"dead_topic": self._topic.name, **counts}))
        else:
            click.echo(self._words())
        if self._sweep.cut_short:
            click.echo(f"workers: {self._topic.name}: {self._sweep.cut_short}", err=True)
